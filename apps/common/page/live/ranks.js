// Every rank: the time of its last step, what it waited for, and its memory.
function showRanks() {
  const rows = LIVE.rows;
  $('ranks').hidden = !rows.length;
  if (!rows.length) return;
  const slowest = Math.max(1e-9, ...rows.map(r => r.step_ms || 0)), fullest = Math.max(1, ...rows.map(r => sum(r.memory))), one = rows.length === 1, hosts = new Set(rows.map(r => r.host));
  const waits = rows.some(r => r.waiting_ms > 0), item = (cls, text) => h('li', {}, h('span', { class: 'sw ' + cls }), text);
  $('h-ranks').textContent = one ? 'The step and its memory' : rows[0].name.startsWith('rank') ? 'Every rank' : 'Every device';
  put('ranks-text', 'Step ' + count(rows[0].step) + (one ? '' : ', the last one that all have told of') + ', and the memory by kind when ' + (one ? 'the device' : 'each device') + ' held most. ' + (hosts.size === 1 && rows[0].host ? (one ? 'It runs on ' : 'All run on ') + rows[0].host + '. ' : '') + (waits ? 'A rank that waits less than the others is the one they wait for.' : ''));
  put('legend', item('bwd', 'computing'), waits ? item('comm', 'waiting for communication') : null, h('li', { class: 'break', 'aria-hidden': 'true' }), LIVE.kinds.map((kind, k) => item('k' + k, kind)));
  const part = (cls, value, whole, title) => h('i', { class: cls, title, style: { width: percent(clamp(value / whole, 0, 1), 2) } });
  put('ledger', h('thead', { role: 'rowgroup' }, h('tr', { role: 'row' }, h('th', { class: 'nm', role: 'columnheader' }, rows[0].name.startsWith('rank') ? 'rank' : 'device'), h('th', { class: 'bar barh', role: 'columnheader' }, 'step'),
    h('th', { class: 'ms', role: 'columnheader' }, 'step'), h('th', { class: 'mem', role: 'columnheader' }, 'memory'), h('th', { class: 'mib', role: 'columnheader' }, 'peak'))),
  h('tbody', { role: 'rowgroup' }, rows.map(r => {
    const wait = clamp(r.waiting_ms || 0, 0, r.step_ms || 0), about = [hosts.size > 1 && r.host, r.has_loss && 'loss ' + number(r.loss), r.has_loss && r.accuracy !== null && percent(r.accuracy, 1) + ' right'].filter(Boolean);
    return h('tr', { role: 'row' },
      h('th', { class: 'nm', role: 'rowheader', scope: 'row' }, h('span', { class: 'mode' }, r.name), h('span', { class: 'why' }, about.join(', '))),
      h('td', { class: 'bar', role: 'cell' }, h('div', { class: 'track', 'aria-hidden': 'true' }, h('div', { class: 'segs' }, part('bwd', (r.step_ms || 0) - wait, slowest, 'computing'), part('comm', wait, slowest, 'waiting')))),
      h('td', { class: 'ms', role: 'cell' }, h('b', {}, r.step_ms === null ? '' : ms(r.step_ms) + ' ms'), wait > 0 ? h('small', {}, ms(wait) + ' waiting') : null),
      h('td', { class: 'mem', role: 'cell' }, h('div', { class: 'mtrack kinds', 'aria-hidden': 'true' }, r.memory.map((b, k) => part('k' + k, b, fullest, LIVE.kinds[k] + ' ' + mib(b) + ' MiB')))),
      h('td', { class: 'mib', role: 'cell' }, h('b', {}, mib(sum(r.memory)) + ' MiB')));
  })));
}
