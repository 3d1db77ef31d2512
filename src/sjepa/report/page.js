document.querySelectorAll("script[data-chart]").forEach(function (spec) {
  var chart = JSON.parse(spec.textContent), name = spec.dataset.chart;
  if (window.innerWidth < 760) chart.layout.dragmode = false;  // a finger scrolls the page
  Plotly.newPlot(name, chart.data, chart.layout, {
    responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],
    toImageButtonOptions: { filename: name, scale: 3 }
  });
});
