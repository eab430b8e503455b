"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const { names, ids, pieces, before, readings, models } = data;
  const levels = Object.keys(data.levels); // "word" alone, or "token" and "word"
  const STEPS = 9; // colours of each scale, as in the style sheet
  const byId = (id) => document.getElementById(id);
  const [text, details, plot] = ["text", "details", "plot"].map(byId);
  const NAMES = { fixed: "fixed", learning: "learning from the text" };

  for (const reading of readings) {
    reading.bits = reading.bits.map((bits) => bits ?? Infinity);
    reading.count = reading.likeliest.length / ids.length;
    let total = 0;
    reading.running = reading.bits.map((bits, i) => 2 ** ((total += bits) / (i + 1)));
    reading.perplexity ??= Infinity;
    reading.label = label(reading);
  }

  const state = {
    view: "surprisal", level: levels[0], model: 0, kind: "fixed", base: 0, other: 0, value: "",
    at: null,
  };
  const fixed = () => readings.find((r) => r.model === state.model && r.kind === "fixed");
  const shown = () => (state.view === "inside" ? fixed()
    : readings.find((r) => r.model === state.model && r.kind === state.kind));

  // --- what has a colour: a token, the tokens of one character, or those of a word ---------

  function grouped(level) {
    const starts = data.levels[level];
    return starts.map((first, k) => {
      const end = starts[k + 1] ?? ids.length;
      let whole = pieces[first];
      for (let i = first + 1; i < end; i++) whole += before[i] + pieces[i];
      return { first, end, whole, tokens: Array.from({ length: end - first }, (_, i) => first + i) };
    });
  }

  const finest = grouped(levels[0]);
  let groups = finest;
  const sum = (values, { tokens }) => tokens.reduce((total, i) => total + values[i], 0);

  function label({ model, kind }) {
    const learns = readings.some((r) => r.kind === "learning");
    return models[model] + (learns ? ` (${kind})` : "");
  }

  function element(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // --- numbers -----------------------------------------------------------------------

  const bitsText = (bits) => `${bits.toFixed(bits < 9.95 ? 2 : 1)} bits`;
  const signed = (bits) => (bits < 0 ? "−" : "+") + Math.abs(bits).toFixed(2);
  function percent(p) {
    const value = 100 * p;
    return value >= 10 ? `${value.toFixed(0)} %` : value >= 0.1 ? `${value.toFixed(1)} %`
      : value >= 0.01 ? `${value.toFixed(2)} %` : "< 0.01 %";
  }
  const number = (value) => value >= 1e6 ? value.toExponential(1)
    : value.toLocaleString("en", { maximumFractionDigits: value < 10 ? 2 : value < 1000 ? 1 : 0 });

  function quantile(values, part) {
    const sorted = values.filter(Number.isFinite).sort((a, b) => a - b);
    return sorted.length ? sorted[Math.floor(part * (sorted.length - 1))] : 0;
  }

  function nice(value) { // the least of 1, 2 and 5 times a power of ten that is not below
    const power = 10 ** Math.floor(Math.log10(value));
    return power * ([1, 2, 5].find((digit) => digit * power >= value * 0.999) ?? 10);
  }

  // --- colours -----------------------------------------------------------------------

  let step = 1;
  let gains = null; // bits that `other` needs less than `base`, by group
  let gainStep = 1;
  const within = () => fixed().inside;
  const isAdded = (label) => label.endsWith("adds"); // else a mean, from 0 to 1
  const amount = (label, group) =>
    sum(within()[label], group) / (isAdded(label) ? 1 : group.tokens.length);

  function compare() {
    for (const reading of readings) reading.sums = groups.map((group) => sum(reading.bits, group));
    const most = quantile(readings.flatMap((r) => r.sums), 0.98) / STEPS;
    step = [0.25, 0.5, 0.75].find((width) => width >= most) ?? Math.ceil(2 * most) / 2;
    const [base, other] = [readings[state.base], readings[state.other]];
    gains = base.sums.map((bits, i) => (bits === other.sums[i] ? 0 : bits - other.sums[i]));
    gainStep = nice(Math.max(0.01, quantile(gains.map(Math.abs), 0.95) / (STEPS / 2)));
  }

  function scale() { // what the colours show: a number for each group, and how much a colour spans
    const each = ` of each ${state.level}`;
    if (state.view === "surprisal") {
      return { values: shown().sums, width: step, title: `Surprisal${each}, in bits` };
    }
    if (state.view === "difference") {
      const title = `Bits that ${readings[state.other].label} gains (blue) or loses (orange)`;
      return { values: gains, width: gainStep, signed: true, title };
    }
    const values = groups.map((group) => amount(state.value, group));
    const signed = isAdded(state.value), title = `${models[state.model]}: ${state.value}`;
    if (!signed) return { values, width: 0.1, title: title + each };
    const width = nice(Math.max(0.01, quantile(values.map(Math.abs), 0.95) / (STEPS / 2)));
    return { values, width, signed, title: `${title} to the logit${each}` };
  }

  function colour(value, { width, signed }) {
    if (!signed) return `s${Math.min(STEPS - 1, Math.floor(value / width))}`;
    const half = (STEPS - 1) / 2;
    return `d${half + Math.max(-half, Math.min(half, Math.round(value / width)))}`;
  }

  function drawLegend({ width, signed, title }) {
    byId("legend-title").textContent = title;
    const short = (value) => String(Number(value.toPrecision(3))).replace("-", "−");
    byId("scale").replaceChildren(...Array.from({ length: STEPS }, (_, k) => {
      const value = signed ? (k - (STEPS - 1) / 2) * width : k * width;
      const sign = signed && value > 0 ? "+" : "";
      const last = !signed && k === STEPS - 1 ? "+" : "";
      return element("span", {},
        element("i", { className: (signed ? "d" : "s") + k }), sign + short(value) + last);
    }));
  }

  function offerValues() { // which differ by model
    const labels = Object.keys(within());
    if (!labels.includes(state.value)) state.value = labels[0] ?? "";
    if (!state.value && state.view === "inside") state.view = "surprisal";
    byId("value").replaceChildren(...labels.map((label) =>
      element("option", { selected: label === state.value }, label)));
  }

  // --- text --------------------------------------------------------------------------

  let words = [];
  const places = new Map();

  function writeText() {
    const all = document.createDocumentFragment();
    words = groups.map(({ first, whole }, i) => {
      // White space around a word has no colour, which a line's end would show as a sliver.
      let [, lead, core, trail] = whole.match(/^(\s*)([^]*?)(\s*)$/);
      let kind = "";
      if (!core && whole) {
        const at = lead.indexOf("\n");
        [lead, core, trail] = at < 0 ? ["", lead, ""]
          : [lead.slice(0, at), "↵".repeat(lead.split("\n").length - 1), lead.slice(at)];
        kind = at < 0 ? " blank" : "";
      } else if (!core) {
        [core, kind] = [nameOf(ids[first]), " part"];
      }
      const gap = before[first] + lead;
      const word = element("span", { textContent: core, kind: `w${gap ? "" : " joined"}${kind}` });
      word.setAttribute("role", "option");
      places.set(word, i);
      all.append(gap, word, trail);
      return word;
    });
    text.replaceChildren(all, data.after);
    words[0].tabIndex = 0;
  }

  function fillPanel() { // a short text is set in large type
    if (ids.length > 500) return;
    const large = [48, 40, 34, 29, 25, 21].filter((pixels) => pixels < text.clientWidth / 15);
    for (const pixels of [...large, 0]) {
      text.style.fontSize = pixels ? `${pixels}px` : "";
      if (text.scrollHeight <= text.clientHeight) return;
    }
  }

  function regroup() {
    const token = state.at === null ? -1 : groups[state.at].first;
    groups = grouped(state.level);
    state.at = null;
    here = null;
    places.clear();
    writeText();
    compare();
    paint();
    if (token >= 0) choose(groups.findIndex(({ end }) => token < end), { focus: false });
  }

  function paint() {
    offerValues();
    const shades = scale();
    for (let i = 0; i < words.length; i++) {
      words[i].className = `${words[i].kind} ${colour(shades.values[i], shades)}`;
    }
    const single = state.view !== "difference";
    for (const id of ["models", "kinds"]) {
      byId(id).hidden = !single || byId(id).querySelectorAll("input").length < 2;
    }
    byId("pair").hidden = single;
    byId("inner").hidden = state.view !== "inside";
    if (state.view === "inside") byId("kinds").hidden = true;
    text.setAttribute("aria-label", state.view === "inside"
      ? `The text, coloured by what goes on inside a model: ${shades.title}`
      : single
      ? `The text, coloured by the surprisal of ${shown().label}`
      : `The text, coloured by the bits that ${readings[state.other].label} gains over `
        + readings[state.base].label);
    drawLegend(shades);
    fillPanel(); // beside the controls and the legend, whose heights differ
    drawChart();
    show(state.at);
  }

  // --- details of a word -------------------------------------------------------------

  const MARKS = { " ": "␣", "\n": "↵", "\t": "⇥", "\xa0": "⍽" };
  const marked = (name) => name.replace(/[\x00-\x20\x7f\xa0]/g, (character) => MARKS[character]
    ?? `\\x${character.charCodeAt(0).toString(16).padStart(2, "0")}`);
  const nameOf = (i) => marked(names[i]);
  const spoken = ({ first, end, whole }) => (ids[end - 1] === data.eos && !whole.trim() ? "end of line"
    : whole.trim() || marked(whole) || nameOf(ids[first]));

  function nameAt(i) { // of a token of the text: a part of a character is named after that
    const group = finest.find(({ end }) => i < end);
    return group.tokens.length < 2 ? nameOf(ids[i])
      : `${spoken(group)} (${i - group.first + 1} of ${group.tokens.length})`;
  }

  function likeliest(reading, i) {
    const list = element("ol", { className: "likeliest" });
    const row = (name, p, className) => {
      const bar = element("i");
      bar.style.setProperty("--part", `${100 * p}%`);
      list.append(element("li", { className },
        element("span", { textContent: name }), element("b", { textContent: percent(p) }), bar));
    };
    for (let k = i * reading.count; k < (i + 1) * reading.count; k++) {
      const id = reading.likeliest[k];
      const right = id === ids[i];
      row(right ? nameAt(i) : nameOf(id), reading.probabilities[k], right ? "true" : "");
    }
    if (!list.querySelector(".true")) row(nameAt(i), 2 ** -reading.bits[i], "true apart");
    return list;
  }

  function facts(reading, i, joint = " · ") {
    return element("p", { className: "facts" },
      element("b", { textContent: bitsText(reading.bits[i]) }), joint, "rank ",
      element("b", { textContent: reading.ranks[i].toLocaleString("en") }));
  }

  function gate(reading, i) {
    const list = element("ol", { className: "gates" });
    for (let k = i * reading.count; k < (i + 1) * reading.count; k++) {
      const bar = element("i");
      bar.style.setProperty("--part", `${100 * reading.gates[k]}%`);
      list.append(element("li", {}, element("span", { textContent: nameOf(reading.favoured[k]) }),
        element("b", { textContent: reading.gates[k].toFixed(3) }), bar));
    }
    return list;
  }

  function experts(reading, i) {
    const count = reading.shares.length / ids.length;
    const shares = reading.shares.slice(i * count, (i + 1) * count);
    const most = shares.indexOf(Math.max(...shares));
    const bars = element("div", { className: "experts" });
    shares.forEach((share, k) => {
      const bar = element("i", { title: `expert ${k + 1}: ${percent(share)}` });
      bar.style.setProperty("--part", `${(100 * share) / shares[most]}%`);
      bars.append(bar);
    });
    const title = `Shares of ${count} experts, the largest ${percent(shares[most])} of expert ${most + 1}`;
    return [element("h3", { textContent: title }), bars];
  }

  function column(title, ...children) {
    return element("div", {}, element("h3", { textContent: title, title }), ...children);
  }

  function predictions(reading, i) {
    const learnt = reading.segment ? Math.floor(i / reading.segment) * reading.segment : 0;
    const parts = reading.segment ? [element("p", { className: "facts", textContent:
      `after learning from ${learnt.toLocaleString("en")} ${levels[0]}s` })] : [];
    parts.push(facts(reading, i));
    if (reading.favoured) {
      const previous = i ? nameAt(i - 1) : nameOf(data.eos);
      parts.push(element("div", { className: "columns" },
        column("Likeliest", likeliest(reading, i)),
        column(`Let through after ${previous}`, gate(reading, i))));
    } else {
      parts.push(column("Likeliest", likeliest(reading, i)));
    }
    return reading.shares ? [...parts, ...experts(reading, i)] : parts;
  }

  function describe(g) {
    const single = state.view !== "difference";
    const group = groups[g];
    const { first, end, tokens } = group;
    const several = tokens.length > 1;
    const count = (number) => number.toLocaleString("en");
    const place = state.level === levels[0]
      ? `${levels[0]}${several ? "s" : ""} ${count(first + 1)}${several ? `–${count(end)}` : ""}`
        + ` of ${count(ids.length)}`
      : `word ${count(g + 1)} of ${count(groups.length)}, ${tokens.length} token${several ? "s" : ""}`;
    const unknown = !several && ids[first] === data.unknown && names[ids[first]] !== pieces[first]
      ? `, read as ${names[ids[first]]}` : "";
    const parts = [
      element("button", { id: "close", type: "button", textContent: "Close",
        onclick: () => { choose(null); } }),
      element("h2", { textContent: spoken(group) }),
      element("p", { className: "facts", textContent: place + unknown }),
    ];
    if (!single) {
      parts.push(element("p", { className: "gain" },
        element("b", { textContent: `${signed(gains[g])} bits gained` })));
    } else if (several) {
      parts.push(element("p", { className: "facts" },
        element("b", { textContent: bitsText(shown().sums[g]) }), " in all"));
    }
    for (const label of state.view === "inside" ? Object.keys(within()) : []) {
      const value = amount(label, group);
      parts.push(element("p", { className: "facts" }, `${label} `,
        element("b", { textContent: isAdded(label) ? signed(value) : value.toFixed(2) })));
    }
    for (const i of tokens) {
      if (several) parts.push(element("h3", { className: "token", textContent: nameAt(i) }));
      parts.push(...(single ? predictions(shown(), i) : [element("div", { className: "columns" },
        ...[readings[state.base], readings[state.other]].map((reading) =>
          column(reading.label, facts(reading, i, element("br")), likeliest(reading, i))))]));
    }
    return parts;
  }

  function sentence(g) {
    const reading = state.view !== "difference" ? shown() : readings[state.other];
    const { first, tokens } = groups[g];
    const top = [];
    for (let k = first * reading.count; k < (first + 1) * reading.count; k++) {
      top.push(`${nameOf(reading.likeliest[k])} ${percent(reading.probabilities[k])}`);
    }
    const gained = state.view !== "difference" ? "" : ` ${signed(gains[g])} bits gained.`;
    const rank = tokens.length > 1 ? `${tokens.length} tokens` : `rank ${reading.ranks[first]}`;
    return `${spoken(groups[g])}: ${bitsText(reading.sums[g])}, ${rank}.${gained} `
      + `Likeliest: ${top.join(", ")}.`;
  }

  let here = null; // the word that the pointer or the keyboard is at

  function show(i) {
    if (here !== null) words[here].classList.remove("here");
    here = i;
    details.classList.toggle("open", state.at !== null); // only a narrow screen minds
    drawCursor();
    if (i === null) {
      details.replaceChildren(element("p", { className: "hint", textContent:
        "Point at a word to see what was expected in its place." }));
      return;
    }
    words[i].classList.add("here");
    details.replaceChildren(...describe(i));
  }

  function choose(i, { scroll = false, focus = true } = {}) {
    const last = state.at;
    if (last !== null) words[last].removeAttribute("aria-selected");
    state.at = i;
    show(i);
    if (i === null) return;
    for (const word of text.querySelectorAll("[tabindex]")) word.removeAttribute("tabindex");
    words[i].tabIndex = 0; // the only one: Tab leaves the text
    words[i].setAttribute("aria-selected", "true");
    if (focus) words[i].focus({ preventScroll: true });
    if (scroll) words[i].scrollIntoView({ block: "nearest" });
    uncover(words[i]);
    byId("live").textContent = sentence(i);
  }

  function uncover(word) { // on a narrow screen the details stand over the end of the page
    if (getComputedStyle(details).position !== "fixed") return;
    const hidden = word.getBoundingClientRect().bottom + 24 - details.getBoundingClientRect().top;
    if (hidden > 0) window.scrollBy(0, hidden);
  }

  function lineAway(i, direction) { // the nearest word on the line above or below
    const from = words[i].getClientRects()[0];
    let best = i, distance = Infinity, top = null;
    for (let j = i + direction; j >= 0 && j < words.length; j += direction) {
      const to = words[j].getClientRects()[0];
      if (Math.abs(to.top - from.top) < from.height / 2) continue;
      if (top === null) top = to.top;
      if (Math.abs(to.top - top) > to.height / 2) break;
      const away = Math.abs(to.left - from.left);
      if (away < distance) [best, distance] = [j, away];
    }
    return best;
  }

  function listenToText() {
    const indexOf = (event) => places.get(event.target.closest?.(".w")) ?? null;
    let place = "";
    const moved = ({ clientX, clientY }) => place !== (place = `${clientX} ${clientY}`);
    text.addEventListener("pointermove", moved);
    text.addEventListener("pointerover", (event) => { // which scrolling causes, too
      if (moved(event) && event.pointerType !== "touch") show(indexOf(event) ?? state.at);
    });
    text.addEventListener("pointerleave", () => show(state.at));
    text.addEventListener("click", (event) => {
      if (indexOf(event) !== null) choose(indexOf(event));
    });
    text.addEventListener("focusin", (event) => {
      const i = indexOf(event);
      if (i !== null && i !== state.at) choose(i);
    });
    const moves = {
      ArrowRight: (i) => i + 1, ArrowLeft: (i) => i - 1, Home: () => 0, End: () => words.length - 1,
      ArrowDown: (i) => lineAway(i, 1), ArrowUp: (i) => lineAway(i, -1),
      PageDown: (i) => i + 100, PageUp: (i) => i - 100,
    };
    text.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "Escape") choose(null);
      if (!(event.key in moves) || indexOf(event) === null) return;
      event.preventDefault();
      const to = moves[event.key](indexOf(event));
      choose(Math.max(0, Math.min(words.length - 1, to)), { scroll: true });
    });
  }

  // --- chart -------------------------------------------------------------------------

  const EDGE = { left: 52, right: 14, top: 10, bottom: 24 };
  let chart = null; // what is drawn: lines of values, and the functions of their places

  function lines() {
    if (state.view !== "difference") {
      return readings.map((reading) => (
        { values: groups.map(({ end }) => reading.running[end - 1]), on: reading === shown(), reading }
      ));
    }
    let total = 0;
    return [{ values: gains.map((gain) => (total += gain)), on: true, reading: null }];
  }

  function ticks(low, high, logarithmic) {
    if (logarithmic) {
      const digits = high / low > 1e4 ? [1] : [1, 2, 5]; // more labels would overlap
      const inside = [];
      for (let power = 10 ** Math.floor(Math.log10(low)); power <= high; power *= 10) {
        inside.push(...digits.map((digit) => digit * power).filter((t) => t >= low && t <= high));
      }
      if (inside.length > 2) return inside;
    }
    const width = nice((high - low) / 5);
    const first = Math.ceil(low / width);
    return Array.from({ length: Math.floor(high / width) - first + 1 }, (_, k) => (first + k) * width);
  }

  function drawChart() {
    const width = plot.clientWidth || 600, height = plot.clientHeight || 220;
    const single = state.view !== "difference";
    const drawn = lines(), size = groups.length;
    const settled = single && size > 200 ? 20 : 0; // before, the mean of a long text says little
    const range = drawn.flatMap(({ values }) => values.slice(settled)).filter(Number.isFinite);
    const [low, high] = bounds(range, single);
    const scale = single ? Math.log : (value) => value;
    const x = (i) => EDGE.left + ((i + 0.5) / size) * (width - EDGE.left - EDGE.right);
    const y = (value) => {
      const part = (scale(value) - scale(low)) / (scale(high) - scale(low));
      const inner = height - EDGE.top - EDGE.bottom;
      return EDGE.top + inner * (1 - Math.max(0, Math.min(1, Number.isFinite(part) ? part : 1)));
    };
    chart = { drawn, x, y, width, height };
    const grid = ticks(low, high, single).map((tick) => {
      const at = y(tick).toFixed(1);
      const kind = !single && Math.abs(tick) < 1e-9 ? "zero" : "grid";
      const shownTick = number(Math.abs(tick)), sign = tick < -1e-9 ? "−" : "";
      return `<line class="${kind}" x1="${EDGE.left}" x2="${width - EDGE.right}" y1="${at}" y2="${at}"/>`
        + `<text x="${EDGE.left - 8}" y="${at}" dy="4" text-anchor="end">${sign}${shownTick}</text>`;
    });
    const wide = Math.max(1, nice(size / Math.max(3, Math.floor(width / 130))));
    for (let i = wide; i <= size; i += wide) {
      grid.push(`<text x="${x(i - 1).toFixed(1)}" y="${height - 6}" text-anchor="middle">`
        + `${i.toLocaleString("en")}</text>`);
    }
    const paths = [...drawn].sort((a, b) => a.on - b.on).map(({ values, on, reading }) => {
      const points = values.map((value, i) => `${x(i).toFixed(1)} ${y(value).toFixed(1)}`);
      const kind = reading ? reading.kind : "gain";
      const stroke = reading ? ` style="stroke: var(--m${reading.model % 6})"` : "";
      return `<path class="${kind}${on ? " on" : ""}"${stroke} d="M${points.join("L")}"/>`;
    });
    plot.innerHTML = grid.join("") + paths.join("") + '<g id="cursor"></g>';
    const level = state.level;
    byId("chart-title").textContent = !single ? `Bits gained up to each ${level}`
      : level === levels[0] ? `Perplexity up to each ${level}`
      : `Perplexity of the ${levels[0]}s up to each ${level}`;
    const total = drawn[0].values[size - 1];
    byId("lines").replaceChildren(...(single ? drawn.map(({ on, reading }) => {
      const sample = element("i");
      sample.style.setProperty("--colour", `var(--m${reading.model % 6})`);
      return element("span", { className: `${reading.kind}${on ? " on" : ""}` }, sample,
        `${reading.label} ${number(reading.perplexity)}`);
    }) : [element("span", { className: "on" },
      `${signed(total)} bits in all, ${signed(total / size)} for each ${level}`)]));
    plot.setAttribute("aria-label", single
      ? `Line chart of the running perplexity. After ${size} ${level}s: `
        + drawn.map(({ reading }) => `${reading.label} ${number(reading.perplexity)}`).join("; ")
      : `Line chart of the bits that ${readings[state.other].label} gains over `
        + `${readings[state.base].label}: ${signed(total)} bits after ${size} ${level}s`);
    drawCursor();
  }

  function bounds(range, single) {
    let low = Infinity, high = -Infinity;
    for (const value of range) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
    if (!range.length) [low, high] = [1, 10];
    if (single) return [low / 1.05, high * 1.05];
    const margin = 0.05 * Math.max(high, 0) - 0.05 * Math.min(low, 0) || 1;
    return [Math.min(low, 0) - margin, Math.max(high, 0) + margin];
  }

  function drawCursor() {
    const cursor = byId("cursor");
    if (!cursor) return;
    if (here === null) {
      cursor.innerHTML = "";
      return;
    }
    const at = chart.x(here).toFixed(1);
    const line = chart.drawn.find(({ on }) => on);
    const value = line.values[here], level = chart.y(value).toFixed(1);
    const left = chart.x(here) < chart.width - 90;
    cursor.innerHTML = `<line class="cursor" x1="${at}" x2="${at}" y1="${EDGE.top}"`
      + ` y2="${chart.height - EDGE.bottom}"/><circle class="dot" cx="${at}" cy="${level}" r="4"/>`
      + `<text x="${at}" y="${EDGE.top + 4}" dx="${left ? 8 : -8}"`
      + ` text-anchor="${left ? "start" : "end"}">`
      + `${state.view === "difference" ? signed(value) + " bits" : number(value)}</text>`;
  }

  function listenToChart() {
    const indexOf = (event) => {
      const inner = chart.width - EDGE.left - EDGE.right;
      const part = (event.clientX - plot.getBoundingClientRect().left - EDGE.left) / inner;
      return Math.max(0, Math.min(groups.length - 1, Math.floor(part * groups.length)));
    };
    plot.addEventListener("pointermove", (event) => {
      const i = indexOf(event);
      show(i);
      scrollTextTo(i);
    });
    plot.addEventListener("pointerleave", () => show(state.at));
    plot.addEventListener("click", (event) => choose(indexOf(event), { scroll: true }));
    new ResizeObserver(drawChart).observe(plot);
    window.addEventListener("resize", fillPanel);
  }

  function scrollTextTo(i) { // without moving the page
    const top = words[i].getBoundingClientRect().top - text.getBoundingClientRect().top;
    if (top < 0 || top > text.clientHeight - 40) text.scrollTop += top - text.clientHeight / 2;
  }

  // --- controls ----------------------------------------------------------------------

  function radio(name, value, title, checked) {
    return element("label", {},
      element("input", { type: "radio", name, value, checked }), element("span", {}, title));
  }

  function makeControls() {
    const kinds = ["fixed", "learning"].filter((kind) => readings.some((r) => r.kind === kind));
    byId("models").append(...models.map((name, i) => radio("model", i, name, i === 0)));
    byId("kinds").append(...kinds.map((kind, i) => radio("kind", kind, NAMES[kind], i === 0)));
    byId("levels").hidden = levels.length < 2;
    if (levels.length > 1) {
      byId("levels").append(...levels.map((level, i) =>
        radio("level", level, level === "word" ? "Word" : "Token", i === 0)));
    }
    const offered = { inside: readings.some((r) => Object.keys(r.inside).length),
      difference: readings.length > 1 };
    for (const radio of byId("views").querySelectorAll("input")) {
      if (offered[radio.value] === false) radio.parentElement.remove();
    }
    byId("views").hidden = !Object.values(offered).some(Boolean);
    // By default what the second model gains over the first, else what learning gains.
    state.other = models.length > 1 ? readings.findIndex((r) => r.model === 1) : readings.length - 1;
    for (const name of ["base", "other"]) {
      byId(name).append(...readings.map((reading, i) =>
        element("option", { value: i, selected: i === state[name] }, reading.label)));
    }
    byId("controls").addEventListener("change", ({ target }) => {
      if (target.name === "model") state.model = Number(target.value);
      else if (target.name) state[target.name] = target.value;
      else state[target.id] = target.id === "value" ? target.value : Number(target.value);
      if (target.name === "level") return regroup();
      compare();
      paint();
    });
    byId("controls").addEventListener("submit", (event) => event.preventDefault());
    const best = readings.reduce((a, b) => (b.perplexity < a.perplexity ? b : a));
    const token = `${ids.length.toLocaleString("en")} ${levels[0]}${ids.length === 1 ? "" : "s"}`;
    byId("summary").textContent = readings.length < 2
      ? `${token} · perplexity ${number(best.perplexity)}`
      : `${token} · lowest perplexity ${number(best.perplexity)}, by ${best.label}`;
  }

  makeControls();
  regroup();
  listenToText();
  listenToChart();
})();
