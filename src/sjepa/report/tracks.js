// The tracks of an utterance on one canvas: spectrogram, labels, clusters, posteriors and entropy over the same time.
class Tracks {
  static SHIFT = 0.02;  // seconds between frames
  static LEGEND = 14;  // pixels above a track for the names of its curves
  static TICKS = 16;  // pixels between a name and its track, for the numbers of the vertical axis
  static CENTRE = 0.0125;  // frame t is centred at 320 t + 200 samples
  static NAMES = {visible: "head, visible", masked: "predictor, masked", target: "target"};
  static SHORT = {visible: "head", masked: "predictor", target: "target"};
  static COLOURS = {visible: "#E69F00", masked: "#CC79A7", target: "#009E73", ranks: ["#0072B2", "#E69F00", "#1b1f24"],
    ink: "#1b1f24", muted: "#667079", grid: "#eef0f2"};
  static MAGMA = [[0, 0, 4], [28, 16, 68], [79, 18, 123], [129, 37, 129], [181, 54, 122], [229, 89, 100], [251, 136, 97],
    [254, 194, 135], [252, 253, 191]];
  static FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';

  constructor(board, canvas) {
    this.board = board;
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
  }

  static bytes(text) {
    return Uint8Array.from(atob(text), character => character.charCodeAt(0));
  }

  static magma(value) {  // 0 to 255
    const place = value / 255 * (Tracks.MAGMA.length - 1), below = Math.min(Math.floor(place), Tracks.MAGMA.length - 2);
    return Tracks.MAGMA[below].map((a, i) => a + (place - below) * (Tracks.MAGMA[below + 1][i] - a));
  }

  static clusterColour(k) {  // as analysis/utterance.py does
    return `hsl(${(k * 0.61803398875 % 1) * 360} 55% ${[42, 58, 74][k % 3]}%)`;
  }

  show(item, view) {
    this.item = item;
    this.view = view;
    this.frames = item.target.entropy.length;
    this.parts = Object.keys(Tracks.NAMES).filter(part => part in item);  // an older analysis has one path
    this.image = Tracks.spectrogram(item.spectrogram);
    this.layout();
  }

  static spectrogram(kept) {
    const data = Tracks.bytes(kept.bytes), made = document.createElement("canvas");
    made.width = kept.columns;
    made.height = kept.mels;
    const context = made.getContext("2d"), pixels = context.createImageData(kept.columns, kept.mels);
    for (let x = 0; x < kept.columns; x++)
      for (let y = 0; y < kept.mels; y++)
        pixels.data.set([...Tracks.magma(data[x * kept.mels + y]), 255], 4 * ((kept.mels - 1 - y) * kept.columns + x));
    context.putImageData(pixels, 0, 0);
    return made;
  }

  // Where everything is: a gutter for names at the left, as wide as the longest of them, and tracks below each other.
  get narrow() { return this.board.clientWidth < 640; }
  get width() { return this.board.clientWidth - this.gutter - 4; }
  get bottom() { return this.rows[this.rows.length - 1].top; }

  x(seconds) {
    return this.gutter + (seconds - this.view.from) / (this.view.to - this.view.from) * this.width;
  }

  frameX(frame) {
    return this.x(Tracks.CENTRE + Tracks.SHIFT * frame);
  }

  timeAt(pixel) {
    return this.view.from + (pixel - this.gutter) / this.width * (this.view.to - this.view.from);
  }

  frameAt(seconds) {
    return Math.max(0, Math.min(this.frames - 1, Math.round((seconds - Tracks.CENTRE) / Tracks.SHIFT)));
  }

  layout() {
    const wanted = [["spectrogram", 170], ["words", 26], ["phones", 26], ...this.parts.map(part => ["clusters " + part, 24]),
      ...this.parts.map(part => ["top " + part, 92]), ["entropy", 92], ["axis", 24]];
    let top = 0;
    this.rows = [];
    for (const [name, height] of wanted) {
      if ((name === "words" || name === "phones") && !this.item[name].length) continue;
      const [kind, part] = name.split(" ");
      if (name === "top " + this.parts[0] || name === "entropy") top += Tracks.LEGEND;
      this.rows.push({kind, part, top, height});
      top += height + (name === "words" || (kind === "clusters" && part !== "target") ? 2 : 9);
    }
    Tracks.fit(this.canvas, this.board.clientWidth, top);
    this.context.font = this.labelSize + " " + Tracks.FONT;
    const widths = this.rows.flatMap(row => this.names(row)).map(name => this.context.measureText(name).width);
    this.gutter = Math.ceil(Math.max(...widths)) + Tracks.TICKS + 4;
    this.board.style.height = top + "px";
    this.height = top;
    this.draw();
  }

  static fit(canvas, width, height) {
    const scale = window.devicePixelRatio || 1;
    canvas.width = width * scale;
    canvas.height = height * scale;
    canvas.style.height = height + "px";
    canvas.getContext("2d").setTransform(scale, 0, 0, scale, 0, 0);
  }

  draw() {
    this.context.clearRect(0, 0, this.board.clientWidth, this.height);
    for (const row of this.rows) {
      this.context.save();
      this[row.kind](row);
      this.context.restore();
    }
  }

  write(text, x, y, {size = "10px", align = "left", baseline = "middle", colour = Tracks.COLOURS.muted} = {}) {
    Object.assign(this.context, {font: size + " " + Tracks.FONT, textAlign: align, textBaseline: baseline, fillStyle: colour});
    this.context.fillText(text, x, y);
  }

  get labelSize() { return this.narrow ? "11px" : "12px"; }

  names(row) {  // one or two lines
    const short = Tracks.SHORT[row.part];
    if (row.kind === "axis") return [];
    if (row.kind === "spectrogram") return [this.narrow ? "mel" : "spectrogram"];
    if (row.kind === "clusters") return [this.narrow ? short : short + " cluster"];
    if (row.kind === "top") return ["top three", this.narrow ? short : Tracks.NAMES[row.part]];
    return row.kind === "entropy" ? ["entropy", "bits"] : [row.kind];
  }

  label(row) {
    const lines = this.names(row), first = row.top + row.height / 2 - 8 * (lines.length - 1);
    const style = {size: this.labelSize, align: "right"};
    lines.forEach((line, index) => this.write(line, this.gutter - Tracks.TICKS, first + 16 * index, style));
  }

  inside(row) {
    this.context.beginPath();
    this.context.rect(this.gutter, row.top, this.width, row.height);
    this.context.clip();
  }

  seen() {
    return [Math.max(0, this.frameAt(this.view.from) - 1), Math.min(this.frames - 1, this.frameAt(this.view.to) + 1)];
  }

  line(row, values, most, colour, thick) {
    const [first, last] = this.seen(), context = this.context;
    context.beginPath();
    for (let t = first; t <= last; t++)
      context.lineTo(this.frameX(t), row.top + row.height * (1 - Math.min(1, values(t) / most)));
    Object.assign(context, {strokeStyle: colour, lineWidth: thick, lineJoin: "round"});
    context.stroke();
    return [first, last];
  }

  level(row, share, text) {
    const y = Math.round(row.top + row.height * (1 - share)) + 0.5;
    this.context.fillStyle = Tracks.COLOURS.grid;
    this.context.fillRect(this.gutter, y - 0.5, this.width, 1);
    if (text !== undefined) this.write(text, this.gutter - 4, y, {align: "right"});
  }

  legend(row, names, colours) {  // above the track, from the right edge to the left
    let right = this.gutter + this.width - 6;
    for (let i = names.length - 1; i >= 0; i--) {
      this.write(names[i], right, row.top - 2, {size: "600 11px", align: "right", baseline: "bottom", colour: colours[i]});
      right -= this.context.measureText(names[i]).width + 12;
    }
  }

  spectrogram(row) {
    this.label(row);
    this.inside(row);
    this.context.imageSmoothingEnabled = false;
    const kept = this.item.spectrogram, seconds = kept.columns * kept.seconds_per_column, first = 0.0075;
    this.context.drawImage(this.image, this.x(first), row.top, this.x(first + seconds) - this.x(first), row.height);
    const mel = hertz => 1127 * Math.log(1 + hertz / 700);
    for (const hertz of [500, 1000, 2000, 4000]) {
      const y = row.top + row.height * (1 - (mel(hertz) - mel(20)) / (mel(8000) - mel(20)));
      const text = hertz < 1000 ? "500 Hz" : hertz / 1000 + " kHz";
      this.write(text, this.gutter + 8, y, {colour: "rgba(255,255,255,0.85)"});
      this.context.fillRect(this.gutter, y, 5, 1);
    }
  }

  words(row) {
    this.segments(row, "600 13px");
  }

  phones(row) {
    this.segments(row, "13px");
  }

  segments(row, size) {
    this.label(row);
    this.inside(row);
    for (const [start, end, text] of this.item[row.kind]) {
      const left = this.x(start), right = this.x(end);
      if (["sil", "SIL", ""].includes(text)) continue;
      this.context.fillStyle = "#f1f4f7";
      this.context.fillRect(left + 0.75, row.top, right - left - 1.5, row.height);
      this.context.font = size + " " + Tracks.FONT;
      if (right - left < this.context.measureText(text).width + 1) continue;
      const style = {size, align: "center", colour: Tracks.COLOURS.ink};
      this.write(text, (left + right) / 2, row.top + row.height / 2 + 1, style);
    }
  }

  clusters(row) {
    this.label(row);
    this.inside(row);
    const best = this.item[row.part].clusters.map(top => top[0]), [first, last] = this.seen();
    for (let t = first, end; t <= last; t = end) {
      for (end = t + 1; end <= last && best[end] === best[t];) end++;
      const left = this.frameX(t - 0.5), right = this.frameX(end - 0.5), colour = best[t] % 3 ? Tracks.COLOURS.ink : "#fff";
      this.context.fillStyle = Tracks.clusterColour(best[t]);
      this.context.fillRect(left, row.top, right - left + 0.5, row.height);
      if (right - left > 7 * String(best[t]).length + 4)
        this.write(best[t], (left + right) / 2, row.top + row.height / 2 + 0.5, {align: "center", colour});
    }
  }

  top(row) {
    const most = 1.03, values = this.item[row.part].posteriors, colours = Tracks.COLOURS.ranks, floor = row.top + row.height;
    this.label(row);
    for (const [share, text] of [[0], [0.5], [1, "1"]]) this.level(row, share / most, text);
    if (row.part === this.parts[0]) this.legend(row, ["first", "second", "third"].slice(0, values[0].length), colours);
    this.inside(row);
    const [first, last] = this.line(row, t => values[t][0], most, colours[0], 2);
    this.context.lineTo(this.frameX(last), floor);
    this.context.lineTo(this.frameX(first), floor);
    this.context.fillStyle = "rgba(0,114,178,0.10)";
    this.context.fill();
    for (let rank = 1; rank < values[0].length; rank++) this.line(row, t => values[t][rank], most, colours[rank], 1.5);
  }

  entropy(row) {
    const most = 1.06 * Math.max(2, ...this.parts.flatMap(part => this.item[part].entropy));
    this.label(row);
    this.level(row, 0);
    for (let bits = 1; bits < most; bits += most > 5 ? 2 : 1) this.level(row, bits / most, bits);
    this.legend(row, this.parts.map(part => Tracks.NAMES[part]), this.parts.map(part => Tracks.COLOURS[part]));
    this.inside(row);
    for (const part of [...this.parts].reverse())
      this.line(row, t => this.item[part].entropy[t], most, Tracks.COLOURS[part], 2);
  }

  axis(row) {
    const steps = [0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60], span = this.view.to - this.view.from;
    const step = steps.find(s => span / s <= this.width / 70) || 600, digits = step < 0.1 ? 2 : step < 1 ? 1 : 0;
    for (let n = Math.ceil(this.view.from / step); n * step <= this.view.to + 1e-9; n++) {
      const x = this.x(n * step), text = (this.item.start + n * step).toFixed(digits) + " s";
      const align = x > this.board.clientWidth - 18 ? "right" : "center";  // the last time is not cut
      this.write(text, x, row.top + 7, {size: "11px", align, baseline: "top"});
      this.context.fillRect(Math.round(x), row.top, 1, 4);
    }
  }
}
