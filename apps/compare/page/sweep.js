// Which mesh of N devices: the planner's predictions of all factorizations, as a table that is a picture.
const MOST_MESHES = 12;

function showSweep() {
  if (!DATA.sweep || !DATA.sweep.rows.length) return $('sweep') && $('sweep').remove();
  const all = DATA.sweep.rows, fits = s => !state.limit || s.peak_bytes <= state.limit * MiB, able = all.filter(fits), over = all.filter(s => !fits(s));
  const shown = [...able, ...over].slice(0, MOST_MESHES), within = state.limit ? 'Within ' + state.limit + ' MiB a device, of ' : 'Of ', [best, next] = able, n = DATA.sweep.devices;
  put('sweepanswer', within + all.length + (all.length === 1 ? ' mesh' : ' meshes') + ' of ' + n + ' devices, ', best ? [modeTag(best.mesh), ' is predicted to be fastest: ' + ms(best.step_ms) + ' ms a step',
    SINGLE ? ', ' + times(SINGLE.step_ms / best.step_ms) + ' one device' : '', '. ', next ? [modeTag(next.mesh), ' would take ' + percent(next.step_ms / best.step_ms - 1) + ' longer.'] : '']
    : ['none fits. ', modeTag(most(all, s => -s.peak_bytes).mesh), ' needs least, ' + mib(Math.min(...all.map(s => s.peak_bytes))) + ' MiB.']);
  const item = (cls, text) => h('li', {}, h('span', { class: 'sw ' + cls }), text), axes = [...new Set(all.flatMap(s => s.axes.filter(a => a.exposed_ms > 0).map(a => a.axis)))];
  put('legend4', PARTS.slice(0, 3).map(([, cls, label]) => item(cls, label)), axes.map(a => h('li', {}, axisTag(a, 'waiting for ' + a))), item('idle', all.some(s => s.bubble_ms > 0) ? 'idle, as in the bubble of a pipeline' : 'idle'));
  const steps = shown.map(s => s.step_ms), end = Math.min(Math.max(...steps), 2.2 * Math.min(...steps)) * 1.03, memory = Math.max(...all.map(s => s.peak_bytes), state.limit * MiB);
  put('sweeptable', h('caption', { class: 'sr' }, 'Meshes by predicted step time'), h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' },
    [['rk', h('span', { class: 'sr' }, 'place')], ['nm', 'mesh, and what it loses'], ['bar', 'predicted step'], ['ms', 'step'], ['mem', 'memory'], ['mib', 'peak']].map(([cls, text]) => h('th', { class: cls, role: 'columnheader' }, text)))),
  h('tbody', { role: 'rowgroup' }, shown.map((s, i) => meshRow(s, fits(s) ? String(i + 1) : '\u2013', end, memory))));
  put('sweep-note', all.length > shown.length ? (all.length - shown.length) + ' more ' + (all.length - shown.length === 1 ? 'mesh is' : 'meshes are') + ' slower' + (over.length ? ', or too large' : '') + '. ' : '',
    'Predicted from the costs that were measured on one device, as above: each device has cores and memory of its own.' + networkNote(DATA.sweep));
}

// What the user assumes of links: " 4 devices a host; between hosts 0.1 GB/s, as given."
function networkNote(sweep) {
  const known = x => x !== null && x !== undefined, per_host = sweep.devices_per_host;
  const given = link => [known(link.latency_us) && link.latency_us + ' \u00b5s', known(link.bandwidth_gbs) && link.bandwidth_gbs + ' GB/s'].filter(Boolean).join(' and ') + ', as given';
  const inside = sweep.link ? ' A link has ' + given(sweep.link) + '.' : '';
  if (!per_host || per_host >= sweep.devices) return inside;
  return inside + ' ' + per_host + (per_host === 1 ? ' device' : ' devices') + ' a host' + (sweep.links_per_host > 1 ? ', with ' + sweep.links_per_host + ' links' : '')
    + '; between hosts ' + (sweep.cross ? given(sweep.cross) : 'the same links as inside one') + '.';
}

function meshRow(s, place, end, memory) {
  const over = place === '\u2013', parts = [...PARTS.slice(0, 3).map(([key, cls, label]) => ({ ms: s[key], class: cls, label })),
    ...s.axes.map(a => ({ ms: a.exposed_ms, style: { background: axisColor(a.axis) }, label: 'waiting for ' + a.axis })), { ms: s.idle_ms, class: 'idle', label: 'idle' }];
  let left = Math.min(s.step_ms, end);
  const bars = parts.map(p => {
    const w = Math.min(p.ms, left);
    left -= w;
    return w > end / 2000 ? h('i', { class: p.class, title: p.label + ' ' + ms(p.ms) + ' ms', style: { ...p.style, width: 100 * w / end + '%' } }) : null;
  });
  const sent = s.axes.map(a => a.axis + '=' + a.size + ' sends ' + mib(a.bytes_sent) + ' MiB').join(', ');
  return h('tr', { class: over ? 'off over' : '', role: 'row' }, h('td', { class: 'rk', role: 'cell' }, place),
    h('th', { class: 'nm', scope: 'row', role: 'rowheader', title: sent }, modeTag(s.mesh), h('span', { class: 'why' }, s.why)),
    h('td', { class: 'bar', role: 'cell' }, h('div', { class: 'track' }, h('div', { class: 'segs' + (s.step_ms > end ? ' torn' : ''), 'aria-hidden': 'true' }, bars),
      s.step_ms > end ? h('span', { class: 'tornlabel', 'aria-hidden': 'true' }, ms(s.step_ms) + ' ms') : null, h('span', { class: 'sr' }, parts.map(p => p.label + ' ' + ms(p.ms) + ' ms').join(', ')))),
    h('td', { class: 'ms', role: 'cell' }, h('b', {}, ms(s.step_ms)), ' ms'),
    h('td', { class: 'mem', role: 'cell' }, h('div', { class: 'mtrack', 'aria-hidden': 'true' }, h('i', { style: { width: 100 * s.peak_bytes / memory + '%' } }), state.limit ? h('span', { class: 'lim', style: { left: 100 * state.limit * MiB / memory + '%' } }) : null)),
    h('td', { class: 'mib', role: 'cell' }, h('b', {}, mib(s.peak_bytes)), ' MiB', over ? h('small', {}, mib(s.peak_bytes - state.limit * MiB) + ' over') : null));
}
