// The table that is the picture: a row a mode, fastest first; a dot a round; a triangle for the prediction.
const AXIS = (() => {  // bars beyond the axis are torn, so that the contenders stay comparable
  const steps = OK.map(m => m.step_ms).sort((x, y) => x - y), contenders = steps.filter(x => x < 2 * steps[0]);
  const end = (contenders.length ? Math.max(...contenders) : 1) * 1.07;
  return { end, ticks: ticksOf(end, 5) };
})();
const at = x => 100 * clamp(x, 0, AXIS.end) / AXIS.end + '%';

function segments(parts, total, end) {
  let left = Math.min(total, end);
  const list = PARTS.map(([key, cls, label]) => {
    const w = Math.min(parts[key], left);
    left -= w;
    return w > end / 2000 ? h('i', { class: cls, title: label + ' ' + ms(parts[key]) + ' ms', style: { width: 100 * w / end + '%' } }) : null;
  });
  return h('div', { class: 'segs' + (total > end ? ' torn' : ''), 'aria-hidden': 'true' }, list);
}

function bar(m, hide) {
  const track = h('div', { class: 'track' }), b = inOther(m);
  for (const t of AXIS.ticks) track.append(h('i', { class: 'gr', style: { left: at(t) } }));
  if (SINGLE && PERFECT < AXIS.end) track.append(h('i', { class: 'ref', style: { left: at(PERFECT) } }));
  if (m.status !== 'ok') track.append(h('span', { class: 'errmsg' }, shortened(m.error.split('\n')[0], 180)));
  else if (!hide) {
    track.append(segments(m, m.step_ms, AXIS.end));
    if (m.step_ms > AXIS.end) track.append(h('span', { class: 'tornlabel', 'aria-hidden': 'true' }, ms(m.step_ms) + ' ms'));
    if (b) {
      const thin = segments(b, b.step_ms, AXIS.end);
      thin.classList.add('segsb');
      track.append(thin);
    } else for (const x of roundsOf(m)) track.append(h('i', { class: x > AXIS.end ? 'dot beyond' : 'dot', title: ms(x) + ' ms', style: { left: at(x) } }));
  }
  if (m.predicted_step_ms && !hide && m.predicted_step_ms < AXIS.end) {
    if (m.predicted_high_ms > m.predicted_low_ms) track.append(h('i', { class: 'predrange', style: { left: at(m.predicted_low_ms), width: `calc(${at(m.predicted_high_ms)} - ${at(m.predicted_low_ms)})` } }));
    track.append(h('i', { class: 'pred', title: 'predicted ' + ms(m.predicted_step_ms) + ' ms', style: { left: at(m.predicted_step_ms) } }));
  }
  if (guesses[m.name] !== undefined) track.append(h('i', { class: 'you', title: 'your guess: ' + ms(guesses[m.name]) + ' ms', style: { left: at(guesses[m.name]) } }));
  if (m.status === 'ok' && !hide) {
    const rounds = roundsOf(m);
    track.append(h('span', { class: 'sr' }, PARTS.map(([key, , label]) => label + ' ' + ms(m[key]) + ' ms').join(', ') + '; rounds from ' +
      ms(Math.min(...rounds)) + ' to ' + ms(Math.max(...rounds)) + ' ms' + (m.predicted_step_ms ? '; predicted ' + ms(m.predicted_step_ms) + ' ms' : '')));
  }
  return track;
}

function stepCell(m, hide) {
  if (hide) return '';
  if (m.status !== 'ok') return [h('b', {}, m.status === 'losses' ? ms(m.step_ms) : m.status === 'timeout' ? 'timeout' : 'failed'), m.status === 'losses' ? ' ms' : '',
    h('small', {}, m.predicted_step_ms ? 'predicted ' + ms(m.predicted_step_ms) : 'no prediction')];
  const b = inOther(m);
  const small = b ? 'B ' + ms(b.step_ms) + ', ' + (unpaired(m, b) === 'undecided' ? '\u2248' : signed(b.step_ms / m.step_ms - 1, 0))
    : m === SINGLE ? 'reference' : SINGLE ? times(SINGLE.step_ms / m.step_ms) + ' single' : '';
  return [h('b', {}, ms(m.step_ms)), ' ms', h('small', {}, small)];
}

function showClockOf(name) {
  if (name !== state.a) state.b = name;
  update('pair');
  $('inside').scrollIntoView();
}

function row(m, place, opts) {
  const ok = m.status === 'ok', hide = guessing && m !== SINGLE;
  const memory = ok || m.status === 'losses', end = memoryEnd(), over = opts.over;
  const why = hide ? 'hidden until you have guessed' : ok ? m.why || '' : m.status === 'losses' ? 'computed other losses' : 'no result';
  const clock = ok ? m.name : OK.length && PREDICTABLE.includes(m) ? PREDICTED + m.name : '';
  const name = clock ? h('button', { class: 'mode', title: m.description + (ok ? '. Show its timeline' : '. Show its predicted timeline'), onclick: () => showClockOf(clock) }, breakable(m.name)) : modeTag(m.name);
  const chips = [ok && m.noisy && !hide && h('span', { class: 'chip', title: 'rounds differ by ' + percent(m.spread) }, 'noisy'),
    OTHER && ok && !hide && !inOther(m) && h('span', { class: 'chip' }, 'not in B')];
  const same = SINGLE ? ok ? h('span', { class: 'yes', title: 'the losses equal those of single within ' + m.difference_from_single.toExponential(1) }, '\u2713', h('span', { class: 'sr' }, 'equal'))
    : m.status === 'losses' ? h('span', { class: 'no', title: 'difference ' + m.difference_from_single.toExponential(1) }, '\u2717', h('span', { class: 'sr' }, 'different')) : '' : '';
  return h('tr', { class: [opts.tie && 'tie', over && 'off over', !ok && 'bad'].filter(Boolean).join(' '), role: 'row' },
    h('td', { class: 'rk', role: 'cell' }, hide ? '?' : place),
    h('th', { class: 'nm', scope: 'row', role: 'rowheader' }, name, h('span', {}, chips), h('span', { class: 'why' }, why)),
    h('td', { class: 'bar', role: 'cell' }, bar(m, hide)),
    h('td', { class: 'ms', role: 'cell' }, stepCell(m, hide)),
    h('td', { class: 'mem', role: 'cell' }, memory && h('div', { class: 'mtrack', 'aria-hidden': 'true' }, h('i', { style: { width: 100 * peakOf(m) / end + '%' } }),
      state.limit ? h('span', { class: 'lim', style: { left: Math.min(100, 100 * state.limit * MiB / end) + '%' } }) : null)),
    h('td', { class: 'mib', role: 'cell' }, memory ? [h('b', {}, mib(peakOf(m))), ' MiB', over && h('small', {}, mib(peakOf(m) - state.limit * MiB) + ' over')] : ''),
    h('td', { class: 'ok', role: 'cell' }, same));
}

// ---- the slider "device holds" ----
const memoryEnd = () => OK.length ? Math.max(...OK.map(peakOf)) : 1;
const LIMITS = (() => {  // from just below the smallest mode to no limit, in MiB
  if (!OK.length) return { min: 0, max: 1, step: 1 };
  const peaks = OK.map(m => peakOf(m) / MiB), step = Number((Math.max(...peaks) / 100).toPrecision(1));
  const min = Math.max(0, Math.floor(Math.min(...peaks) * 0.95 / step) * step), max = (Math.floor(Math.max(...peaks) / step) + 1) * step;
  return { min: Number(min.toPrecision(6)), max: Number(max.toPrecision(6)), step };
})();
const limitText = () => state.limit ? state.limit + ' MiB' : 'no limit';

function tableHead(table) {
  const slider = h('input', { type: 'range', id: 'limit', ...LIMITS, 'aria-label': 'Memory of a device in MiB; the right end means no limit',
    oninput: e => { const x = Number(e.target.value); state.limit = x > memoryEnd() / MiB ? 0 : Number(x.toPrecision(6)); update('limit'); } });
  const label = AXIS.end > PERFECT && SINGLE && N > 1;
  table.append(h('caption', { class: 'sr' }, 'Modes by step time, with the peak memory of the fullest device'));
  table.append(h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' },
    h('th', { class: 'rk', role: 'columnheader' }, h('span', { class: 'sr' }, 'place')),
    h('th', { class: 'nm', role: 'columnheader' }, 'mode, and what it loses most to'),
    h('th', { class: 'barh bar', role: 'columnheader' }, h('span', { class: 'sr' }, 'step time'), h('div', { class: 'axis', 'aria-hidden': 'true' },
      AXIS.ticks.map((t, i) => h('span', { style: { left: at(t) } }, t + (i ? '' : ' ms'))), label ? h('span', { class: 'reflabel' + (PERFECT > AXIS.end * 0.8 ? ' left' : PERFECT < AXIS.end * 0.2 ? ' right' : ''), style: { left: at(PERFECT) } }, 'perfect split ' + ms(PERFECT)) : null)),
    h('th', { class: 'ms', role: 'columnheader' }, 'step'),
    h('th', { class: 'mem', role: 'columnheader' }, h('div', { class: 'limitbox' }, h('label', { for: 'limit' }, h('span', {}, 'device holds'), h('b', { id: 'limit-text' })), slider)),
    h('th', { class: 'mib', role: 'columnheader' }, 'peak'), h('th', { class: 'ok', role: 'columnheader' }, 'same losses'))));
}

function showTable() {
  showAnswer();
  const k = ranking(), table = $('ledger');
  // The head stays, since it holds the slider that may be moving; the body is made anew.
  if (!table.tHead) tableHead(table);
  $('limit').value = state.limit || LIMITS.max;
  $('limit').setAttribute('aria-valuetext', limitText());
  $('limit-text').textContent = limitText();
  const body = h('tbody', { role: 'rowgroup' });
  if (guessing) for (const m of [SINGLE, ...OK.filter(x => x !== SINGLE).sort((x, y) => x.name < y.name ? -1 : 1)]) body.append(row(m, m === SINGLE ? '' : '?', {}));
  else {
    k.places.forEach((p, i) => {
      body.append(row(p.mode, p.place, { tie: i < k.answer.first }));
      if (i + 1 === k.answer.first && k.answer.first > 1) body.append(h('tr', { class: 'noteline', role: 'row' }, h('td', { colspan: 7, role: 'cell' }, nodesOf(k.answer.shared))));
    });
    for (const m of k.over) body.append(row(m, '\u2013', { over: true }));
    for (const m of FAILED) body.append(row(m, '\u2717', {}));
  }
  for (const old of [...table.tBodies]) old.remove();
  table.append(body);
  put('notes', DATA.answer.notes.map(text => h('p', { class: 'warning' }, text)));
  put('losses', DATA.answer.same_losses);
  put('failures', FAILED.filter(m => m.error).map(m => h('details', {}, h('summary', {}, m.name + (m.status === 'losses' ? ' computed other losses' : ' failed: last lines')), h('pre', {}, m.error))));
  showOther();
}

function showTables() {
  const k = ranking(), word = m => {
    const p = k.places.find(q => q.mode === m);
    return !p ? 'does not fit' : p.verdict.word === 'fastest' ? 'fastest' : p.verdict.word + ' (' + signed(p.verdict.low) + ' to ' + signed(p.verdict.high) + ')';
  };
  const fullest = m => m.memory.length ? most(m.memory, x => x.peak.total) : null;
  put('tables',
    plainTable('Time of a step, ms, mean over the devices', ['mode', 'step', 'forward', 'backward', 'update', 'waiting for comm', 'idle', 'rounds from', 'to'],
      OK.map(m => [m.name, ...[m.step_ms, ...PARTS.map(p => m[p[0]]), Math.min(...roundsOf(m)), Math.max(...roundsOf(m))].map(x => x.toFixed(2))])),
    plainTable('Memory of the fullest device when it holds most, and bytes sent per step by all devices, MiB', ['mode', ...KINDS, 'all', 'sent'],
      OK.filter(fullest).map(m => [m.name, ...KINDS.map(kind => (fullest(m).peak[kind] / MiB).toFixed(2)), (fullest(m).peak.total / MiB).toFixed(2), (m.bytes_sent / MiB).toFixed(2)])),
    plainTable('Predictions and equality', ['mode', 'predicted ms', 'from', 'to', 'error', 'predicted MiB', 'loss difference', 'against the fastest, paired'],
      OK.map(m => [m.name, ...(m.predicted_step_ms ? [ms(m.predicted_step_ms), ms(m.predicted_low_ms), ms(m.predicted_high_ms), signed(m.prediction_error), mib(Math.max(...m.predicted_peak_bytes))] : ['none', '', '', '', '']),
        m.difference_from_single.toExponential(1), word(m)])));
}

function showLegend() {
  const item = (mark, text) => h('li', {}, mark, text), sw = cls => h('span', { class: 'sw ' + cls });
  put('legend', PARTS.map(([, cls, label]) => item(sw(cls), label)), item(h('span', { class: 'lg-dot' }), 'one round'), item(h('span', { class: 'lg-tri' }), 'predicted'));
  put('legend2', h('li', { class: 'lead-in' }, 'Time'), PARTS.slice(0, 3).map(([, cls, label]) => item(sw(cls), label)), item(sw('comm'), 'communication that devices wait for'),
    item(sw('hid'), 'communication behind computing'), item(sw('idle'), 'idle'),
    h('li', {}, h('label', {}, h('input', { type: 'checkbox', id: 'path', checked: state.path ? '' : null, onchange: e => { state.path = e.target.checked ? 1 : 0; update('pair'); } }), ' only the critical path')), h('li', { class: 'break', 'aria-hidden': 'true' }), h('li', { class: 'lead-in' }, 'Memory'), KINDS.map((kind, i) => item(sw('k' + i), kind)));
  put('legend3', HELD.map(([kind, k]) => item(sw('k' + k), kind)), item(sw('k3 pale'), 'passes through'), item(h('span', { class: 'sw borrowed' }), 'borrowed for a moment'), [...new Set(OK.flatMap(m => trafficOf(m).map(t => t.axis)))].map(axis => h('li', {}, axisTag(axis, 'sent along ' + axis))));
}
