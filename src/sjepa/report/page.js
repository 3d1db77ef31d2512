// The page is drawn and can be read first. Then the chart library is unpacked, and charts are drawn one at a time.
(function () {
  var dark = window.matchMedia("(prefers-color-scheme: dark)").matches;

  function darken(layout) {
    var ink = "#e6e9ec", muted = "#a3acb5", rule = "#5b646d", grid = "#2b3238", paper = "#14181c";
    layout.paper_bgcolor = layout.plot_bgcolor = paper;
    layout.font = Object.assign({}, layout.font, { color: ink });
    layout.hoverlabel = { bgcolor: "#20262b", bordercolor: rule, font: { color: ink, size: 12 } };
    Object.keys(layout).filter(function (key) { return /^[xy]axis/.test(key); }).forEach(function (key) {
      var axis = layout[key];
      axis.gridcolor = grid; axis.linecolor = rule;
      axis.tickfont = Object.assign({}, axis.tickfont, { color: muted });
      if (axis.title && axis.title.font) axis.title.font.color = muted;
    });
    (layout.annotations || []).forEach(function (note) { if (note.font && note.yref !== "y2") note.font.color = muted; });
    (layout.shapes || []).forEach(function (shape) { 
      if (shape.fillcolor === "#f4f7fa") shape.fillcolor = "#1c2227";
      if (shape.line && shape.line.color === "#1b1f24") shape.line.color = ink;
    });
  }

  function draw(spec) {
    var chart = JSON.parse(spec.textContent), name = spec.dataset.chart;
    if (window.innerWidth < 760) chart.layout.dragmode = false;  // a finger scrolls the page
    if (dark) {
      darken(chart.layout);
      chart.data.forEach(function (trace) {
        if (trace.line && trace.line.color === "#1b1f24") trace.line.color = "#e6e9ec";
        if (trace.textfont) trace.textfont.color = "#e6e9ec";
        if (trace.error_x) trace.error_x.color = "#a3acb5";
      });
    }
    return Plotly.newPlot(name, chart.data, chart.layout, Object.assign({
      responsive: true, displaylogo: false, modeBarButtons: [["toImage", "resetScale2d"]],
      toImageButtonOptions: { filename: name, scale: 3 }
    }, chart.config));
  }

  var waiting = [];
  function drawNext() {
    if (!waiting.length) return;
    draw(waiting.shift());
    setTimeout(drawNext, 0);
  }
  window.addEventListener("beforeprint", function () { while (waiting.length) draw(waiting.shift()); });

  function start() {
    var packed = atob(document.getElementById("plotly").textContent), bytes = new Uint8Array(packed.length);
    for (var i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
    var unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    new Response(unpacked).text().then(function (source) {
      var script = document.createElement("script");
      script.textContent = source;
      document.head.appendChild(script);
      waiting = Array.from(document.querySelectorAll("script[data-chart]"));
      drawNext();
    });
  }

  if (document.querySelector("script[data-chart]")) requestAnimationFrame(function () { setTimeout(start, 0); });
})();
