// Two modes on one clock, measured or predicted: a lane per device, communication beneath it, and memory beneath both.
const LANES = 8;  // more devices than this would not fit into a picture
const scrubs = {};

function geometry() {
  const w = Math.max(280, $('figA').clientWidth), left = narrow() ? 44 : 64, right = 8;
  const end = Math.max(shownNamed(state.a).step_ms, shownNamed(state.b).step_ms) * 1.045;
  return { w, left, right, end, x: t => left + t / end * (w - left - right), ticks: ticksOf(end, narrow() ? 5 : 10) };
}
const CLASS = { forward: 'fwd', backward: 'bwd', communication: 'comm', optimizer: 'upd', other: 'upd', kernel: 'upd' };
// "forward 3" of a pipeline is micro-batch 3, "weights 3" its weight gradients.
function labelOf(s) {
  const found = /^(forward|backward|weights) (\d+)$/.exec(s.name);
  return found ? (found[1] === 'weights' ? 'w' : '') + found[2] : '';
}

function lanes(m, g) {
  const laneH = 17, netH = 8, gap = 7, top = 6, count = Math.min(m.devices.length, LANES), bottom = top + count * (laneH + netH + gap);
  const svg = v('svg', { class: 'tl', height: bottom + 4, viewBox: '0 0 ' + g.w + ' ' + (bottom + 4), role: 'img', 'aria-label': 'Timeline of ' + m.name + ', ' + ms(m.step_ms) + ' ms' });
  for (const t of g.ticks) svg.append(v('line', { class: 'hair', x1: g.x(t), x2: g.x(t), y1: 0, y2: bottom }));
  const rect = (cls, s, y, height) => {
    const begin = clamp(s.begin, 0, m.step_ms), w = g.x(clamp(s.end, 0, m.step_ms)) - g.x(begin);
    svg.append(v('rect', { class: cls + (state.path && !s.critical ? ' dim' : ''), x: g.x(begin).toFixed(2), y, width: Math.max(0.6, w - (w > 3 ? 0.7 : 0)).toFixed(2), height }, v('title', {}, m.devices[s.device] + ': ' + saidOf(s) + ', ' + (s.end - s.begin).toFixed(2) + ' ms')));
    return w;
  };
  for (let d = 0; d < count; ++d) {
    const y = top + d * (laneH + netH + gap), mine = spansOf(m).filter(s => s.device === d), own = mine.filter(s => !s.beside), beside = mine.filter(s => s.beside);
    svg.append(v('text', { x: g.left - 8, y: y + 13, 'text-anchor': 'end' }, (narrow() ? '' : 'device ') + d));
    svg.append(v('rect', { class: 'idle', x: g.x(0), y, width: g.x(m.step_ms) - g.x(0), height: laneH }));
    const waits = own.filter(s => s.activity === 'communication');
    for (const s of own) {  // the outer span begins first, so the inner one lies above it
      const w = rect(CLASS[s.activity], s, y, laneH), label = labelOf(s);
      if (label && w > 6 + 7.5 * label.length) svg.append(v('text', { class: s.activity === 'forward' ? 'onlight' : 'onbar', x: (g.x(s.begin) + g.x(s.end)) / 2, y: y + 12.5, 'text-anchor': 'middle' }, label));
    }
    for (const s of beside) {
      rect('hid', s, y + laneH + 1, netH - 1);
      for (const x of waits) if (Math.min(x.end, s.end) > Math.max(x.begin, s.begin)) rect('comm', { ...s, begin: Math.max(x.begin, s.begin), end: Math.min(x.end, s.end) }, y + laneH + 1, netH - 1);
    }
  }
  svg.append(v('line', { class: 'end', x1: g.x(m.step_ms), x2: g.x(m.step_ms), y1: 0, y2: bottom }));
  return { svg, bottom: bottom + 4 };
}

function showTimeline(which) {
  const figure = $('fig' + which.toUpperCase()), m = shownNamed(state[which]), g = geometry();
  const select = h('select', { 'aria-label': 'Mode of timeline ' + which.toUpperCase(), onchange: e => { state[which] = e.target.value; state.t = -1; update('pair'); figure.querySelector('select').focus(); } },
    h('optgroup', { label: 'measured' }, OK.map(x => h('option', { value: x.name, selected: x === m ? '' : null }, x.name))),
    PREDICTABLE.length ? h('optgroup', { label: isHere(state.n) ? 'predicted' : 'simulated on ' + state.n + (state.n === 1 ? ' device' : ' devices') }, predictionOptions(state[which])) : null);
  const own = PREDICTED + state.a, beside = which === 'a' && state.b !== own && PREDICTABLE.some(x => PREDICTED + x.name === own) &&
    h('button', { class: 'beside', onclick: () => { state.b = own; update('pair'); $('figB').querySelector('select').focus(); } }, 'beside its prediction');
  const time = lanes(m, g), memory = memoryPicture(m, g, memoryEndOf([shownNamed(state.a), shownNamed(state.b)]));
  scrubs[which] = [time, memory].map(p => { const line = v('line', { class: 'scrub', y1: 0, y2: p.bottom }); p.svg.append(line); return line; });
  const move = e => {
    const box = time.svg.getBoundingClientRect();
    state.t = clamp(((e.clientX - box.left) / box.width * g.w - g.left) / (g.w - g.left - g.right) * g.end, 0, g.end);
    showMoment();
  };
  for (const p of [time, memory]) {
    p.svg.addEventListener('pointermove', move);
    p.svg.addEventListener('pointerdown', move);
    p.svg.addEventListener('pointerup', writeUrl);
  }
  put(figure, h('figcaption', { class: 'picker' }, select, beside, h('span', { class: 'res' }, h('b', {}, ms(m.step_ms) + ' ms'), ', peak ', h('b', {}, mib(peakOf(m)) + ' MiB')), h('span', { class: 'whyline' }, m.long_why || '')), time.svg, memory.svg);
}

function describe(m, t) {
  if (t > m.step_ms) return [h('b', {}, m.name + ': '), 'has ended ' + ms(t - m.step_ms) + ' ms ago.'];
  const groups = new Map(), now = spansOf(m).filter(s => s.begin <= t && t < s.end);
  m.devices.forEach((_, d) => {
    const inner = now.filter(s => s.device === d && !s.beside).pop(), beside = now.find(s => s.device === d && s.beside);
    let text = inner ? saidOf(inner) : 'idle';
    if (beside && !(inner && inner.activity === 'communication')) text += ', ' + (inner ? 'and behind it ' : '') + saidOf(beside);
    groups.set(text, [...(groups.get(text) || []), d]);
  });
  const said = [...groups].map(([text, list]) => (list.length === m.devices.length && list.length > 1 ? 'all devices' : 'device ' + (list.length > 4 ? list[0] + ' and ' + (list.length - 1) + ' more' : list.join(', '))) + ': ' + text);
  const shown = said.length > 5 ? [...said.slice(0, 4), (said.length - 4) + ' more'] : said, memory = memoryAt(m, t);
  return [h('b', {}, m.name + ': '), shown.join('; ') + '.', memory ? ' Device ' + memory.device + ' holds ' + mib(memory.total) + ' MiB, ' + mib(memory.activations) + ' of them activations.' : ''];
}

function showMoment() {
  const g = geometry(), a = shownNamed(state.a), b = shownNamed(state.b);
  if (state.t < 0 || state.t > g.end) state.t = defaults.t = Math.min(a.step_ms, b.step_ms) * 0.62;
  for (const list of Object.values(scrubs)) for (const line of list) { line.setAttribute('x1', g.x(state.t)); line.setAttribute('x2', g.x(state.t)); }
  const input = $('scrub');
  input.max = g.end;
  input.value = state.t;
  input.setAttribute('aria-valuetext', ms(state.t) + ' milliseconds');
  $('tout').textContent = ms(state.t) + ' ms';
  put('readA', describe(a, state.t));
  put('readB', state.a === state.b ? '' : describe(b, state.t));
}

function showPair() {
  if (!OK.length) return $('inside') && $('inside').remove();
  for (const which of ['a', 'b']) if (!shownNamed(state[which])) state[which] = defaults[which];  // it cannot run on so many devices
  showTimeline('a');
  showTimeline('b');
  showMoment();
  const shown = [shownNamed(state.a), shownNamed(state.b)], merged = sum(shown.map(m => m.spans_merged || 0)), more = Math.max(...shown.map(m => m.devices.length)) - LANES;
  put('inside-note', merged ? merged + ' spans were too short to be drawn and are merged with their neighbours. ' : '', more > 0 ? 'The other ' + more + ' devices are not drawn. ' : '',
    showsPrediction() ? 'A prediction is the simulation of the planner: the devices of a stage, or of the whole mode, do the same as the one with the most samples, a stage that waits for a message is idle. The blocks of a forward or a backward share its time as they do alone, and memory follows them. ' : '',
    'The critical path is read from times: a span follows the one that ended last before it, a wait the collective that ended it, and a collective the device that joined it last. ',
    'Times are from the median step. Memory is from another step of the same mode, stretched between the begins of forward, backward and update.');
}
function choosePair() {
  if (!OK.length) return;
  const best = ranking().first[0] || OK[0], family = OK.find(m => m.family !== best.family && m.family !== 'single'), next = OK.find(m => m !== best);
  defaults.a = state.a = best.name;
  defaults.b = state.b = (family || next || best).name;
}
