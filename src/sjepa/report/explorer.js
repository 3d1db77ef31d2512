// The utterance explorer: choose, play, seek and step; the cursor lies on a canvas above the tracks.
(function () {
  "use strict";

  function element(tag, name, text) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    return made;
  }

  function explore(root, entries) {
    const find = name => root.querySelector(name);
    const cursor = find(".cursor"), board = find(".board"), audio = find("audio"), play = find(".play");
    const which = find(".which"), clock = find(".clock"), readout = find(".readout");
    const tracks = new Tracks(board, find(".tracks"));
    let item, time = 0, hover = null, url = null, timer = 0;

    entries.forEach((entry, index) => {
      const said = entry.text ? ": " + entry.text : "";
      const option = element("option", "", (entry.run ? entry.run + " · " : "") + entry.name + said.slice(0, 70));
      option.value = index;
      which.append(option);
    });

    function choose(index) {
      const again = item && item.name === entries[index].name;  // of another run: stay where we are
      which.value = index;
      item = entries[index];
      if (url) URL.revokeObjectURL(url);
      url = URL.createObjectURL(new Blob([Tracks.bytes(item.audio)], {type: "audio/flac"}));
      audio.src = url;
      audio.playbackRate = Number(find(".rate select").value);
      time = again ? time : 0;
      hover = null;
      find(".transcript").textContent = item.text ? "“" + item.text + "”" : "";
      root.dataset.utterance = item.name;
      tracks.show(item, again ? tracks.view : {from: 0, to: item.seconds});
      resize();
      stopped();
    }

    function resize() {
      tracks.layout();
      Tracks.fit(cursor, board.clientWidth, tracks.height);
      root.dataset.gutter = tracks.gutter;
      point();
    }

    function point() {
      const context = cursor.getContext("2d"), bottom = tracks.bottom, here = tracks.x(time);
      context.clearRect(0, 0, board.clientWidth, tracks.height);
      if (hover !== null) {
        context.fillStyle = "rgba(27,31,36,0.10)";
        context.fillRect(tracks.frameX(hover - 0.5), 0, Math.max(2, tracks.frameX(1) - tracks.frameX(0)), bottom);
      }
      if (here >= tracks.gutter - 1 && here <= tracks.gutter + tracks.width + 1) {
        context.fillStyle = "#D55E00";
        context.fillRect(here - 1, 0, 2, bottom);
        context.beginPath();
        context.moveTo(here - 6, bottom + 8);
        context.lineTo(here + 6, bottom + 8);
        context.lineTo(here, bottom);
        context.fill();
      }
      tell();
    }

    const spoken = (kind, seconds) => (item[kind].find(([a, b]) => a <= seconds && seconds < b) || ["", "", ""])[2];

    function tell() {
      const frame = hover === null ? tracks.frameAt(time) : hover, seconds = Tracks.CENTRE + Tracks.SHIFT * frame;
      clock.textContent = (item.start + time).toFixed(2) + " / " + (item.start + item.seconds).toFixed(2) + " s";
      Object.assign(root.dataset, {frame: tracks.frameAt(time), time: time.toFixed(4), shown: frame});
      const facts = element("div", "facts");
      const add = (name, value) => {
        const line = element("div");
        line.append(element("span", "", name), element("b", "", value));
        facts.append(line);
      };
      const place = `${frame} of ${tracks.frames} · ${(item.start + seconds).toFixed(3)} s`;
      add(hover === null ? "frame" : "pointed at", place);
      const phone = spoken("phones", seconds) || "–", word = spoken("words", seconds);
      if (item.phones.length) add("phone", word ? phone + " in " + word : phone);
      readout.replaceChildren(facts, ...tracks.parts.map(part => distribution(part, frame)));
    }

    function distribution(part, frame) {
      const block = element("div", "part " + part), head = element("div", "head"), {clusters, posteriors, entropy} = item[part];
      head.append(element("span", "", Tracks.NAMES[part]), element("b", "", entropy[frame].toFixed(2) + " bits"));
      block.append(head);
      clusters[frame].forEach((cluster, rank) => {
        const row = element("div", "bar"), share = posteriors[frame][rank], name = item.cluster_names[cluster];
        const swatch = element("s"), bar = element("em"), fill = element("i");
        swatch.style.background = Tracks.clusterColour(cluster);
        fill.style.width = (100 * share).toFixed(1) + "%";
        fill.style.background = Tracks.COLOURS.ranks[rank];
        bar.append(fill);
        const percent = (100 * share).toFixed(share < 0.0995 ? 1 : 0) + "%";
        row.append(swatch, element("span", "", cluster + (name ? " · " + name[0] : "")), bar, element("b", "", percent));
        block.append(row);
      });
      return block;
    }

    function seek(seconds) {
      time = Math.max(0, Math.min(item.seconds, seconds));
      audio.currentTime = time;
      follow();
      point();
    }

    function look(from, span) {
      tracks.view = {from: Math.max(0, Math.min(item.seconds - span, from))};
      tracks.view.to = tracks.view.from + span;
      tracks.draw();
      point();
    }

    function follow() {  // keep the cursor in view
      const {from, to} = tracks.view;
      if (time < from || time > to) look(time - 0.1 * (to - from), to - from);
    }

    function zoom(factor) {
      const span = Math.max(0.2, Math.min(item.seconds, (tracks.view.to - tracks.view.from) * factor));
      look(time - span / 2, span);
    }

    function tick() {
      time = Math.min(item.seconds, audio.currentTime);
      follow();
      point();
      timer = requestAnimationFrame(tick);
    }

    function stopped() {
      cancelAnimationFrame(timer);
      play.textContent = "▶";
      play.setAttribute("aria-label", "Play");
      root.dataset.playing = "no";
      point();
    }

    function toggle() {
      if (!audio.paused) return audio.pause();
      if (time >= item.seconds - 0.03) seek(0);
      audio.play();
    }

    function step(count) {
      audio.pause();
      hover = null;
      const frame = Math.max(0, Math.min(tracks.frames - 1, tracks.frameAt(time) + count));
      seek(Tracks.CENTRE + Tracks.SHIFT * frame);
    }

    function key(event) {
      if (event.target.tagName === "SELECT" || event.altKey || event.ctrlKey || event.metaKey) return;
      const moves = {ArrowLeft: -1, ArrowRight: 1, Home: -tracks.frames, End: tracks.frames};
      if (event.key in moves) step(moves[event.key] * (event.shiftKey ? 10 : 1));
      else if (event.key === " " && event.target.tagName !== "BUTTON") toggle();
      else return;
      event.preventDefault();
    }

    function seenOnScreen() {
      const box = root.getBoundingClientRect();
      return box.top < 0.7 * innerHeight && box.bottom > 0.3 * innerHeight;
    }

    audio.addEventListener("play", () => {
      play.textContent = "❚❚";
      play.setAttribute("aria-label", "Pause");
      root.dataset.playing = "yes";
      hover = null;
      cancelAnimationFrame(timer);
      tick();
    });
    audio.addEventListener("pause", () => { time = Math.min(item.seconds, audio.currentTime); stopped(); });
    audio.addEventListener("ended", stopped);
    audio.addEventListener("loadedmetadata", () => { if (time) audio.currentTime = time; root.dataset.ready = "yes"; });
    root.addEventListener("keydown", key);
    document.addEventListener("keydown", event => {  // arrows also work while the explorer is merely on the screen
      if (event.target === document.body && /Arrow(Left|Right)/.test(event.key) && seenOnScreen()) key(event);
    });
    cursor.addEventListener("pointerdown", event => {
      root.focus({preventScroll: true});
      cursor.setPointerCapture(event.pointerId);
      seek(tracks.timeAt(event.offsetX));
    });
    cursor.addEventListener("pointermove", event => {
      if (event.buttons) seek(tracks.timeAt(event.offsetX));
      const off = event.offsetX < tracks.gutter || event.buttons;
      hover = off ? null : tracks.frameAt(tracks.timeAt(event.offsetX));
      point();
    });
    cursor.addEventListener("pointerleave", () => { hover = null; point(); });
    play.addEventListener("click", toggle);
    which.addEventListener("change", () => choose(Number(which.value)));
    const turn = by => choose((Number(which.value) + by + entries.length) % entries.length);
    find(".before").addEventListener("click", () => turn(-1));
    find(".after").addEventListener("click", () => turn(1));
    find(".in").addEventListener("click", () => zoom(0.5));
    find(".out").addEventListener("click", () => zoom(2));
    find(".fit").addEventListener("click", () => zoom(1e9));
    find(".rate select").addEventListener("change", event => { audio.playbackRate = Number(event.target.value); });
    choose(0);
    new ResizeObserver(resize).observe(board);
  }

  document.querySelectorAll(".explorer").forEach(root =>
    explore(root, JSON.parse(root.parentElement.querySelector(".explorer-data").textContent)));
})();
