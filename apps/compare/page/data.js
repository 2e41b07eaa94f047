// The comparison, as document.cpp writes it. A result without a member shows no picture of it.
const DATA = JSON.parse($('data').textContent);
const KINDS = DATA.memory_kinds;
const ACTIVITIES = ['forward', 'backward', 'communication', 'optimizer', 'other', 'kernel'];
const PARTS = [['forward_ms', 'fwd', 'forward'], ['backward_ms', 'bwd', 'backward'], ['update_ms', 'upd', 'update'],
  ['exposed_comm_ms', 'comm', 'waiting for communication'], ['idle_ms', 'idle', 'idle']];

const N = DATA.options.devices;
const OK = DATA.modes.filter(m => m.status === 'ok').sort((x, y) => x.step_ms - y.step_ms);
const FAILED = DATA.modes.filter(m => m.status !== 'ok');
const SINGLE = OK.find(m => m.family === 'single') || null;
const PERFECT = SINGLE ? SINGLE.step_ms / N : 0;
const ROUNDS = OK.length ? OK[0].rounds.length : 0;

const modeNamed = name => OK.find(m => m.name === name) || null;
const roundsOf = m => m.rounds.map(r => r.step_ms);
const peakOf = m => Math.max(...m.peak_bytes);
const fastestOf = list => list.reduce((a, b) => b.step_ms < a.step_ms ? b : a);
// A span in the compact form of the page.
const spansOf = m => m.objects || (m.objects = (m.spans || []).map(([device, lane, activity, name, begin, end, critical, subject]) =>
  ({ device, beside: lane === 1, activity: ACTIVITIES[activity], name: m.span_names[name].replace(/ \(.*/, ''), begin, end, critical: critical === 1, subject: m.span_subjects[subject] })));
// "bucket 3, block fc1, 1.5 MiB along replicate": what a span moves, as far as its name does not say it.
function movesOf({ name, subject: s }) {
  const bytes = s.bytes ? (s.bytes < MiB / 20 ? (s.bytes / 1024).toPrecision(2) + ' KiB' : mib(s.bytes) + ' MiB') : '';
  return [s.bucket === null || name.endsWith('bucket ' + s.bucket) ? '' : 'bucket ' + s.bucket, s.block && !name.includes(s.block) ? 'block ' + s.block : '',
    [bytes, s.axis ? 'along ' + s.axis : ''].filter(Boolean).join(' ')].filter(Boolean).join(', ');
}
const saidOf = s => [s.name, movesOf(s)].filter(Boolean).join(', ');

// An axis of a mesh has one colour everywhere.
const AXIS_COLORS = { replicate: 'var(--comm)', shard: 'var(--shard)', pipeline: 'var(--k4)', tensor: 'var(--k2)', context: 'var(--k1)', expert: 'var(--k0)' };
// Along several axes, such as "replicate_context", the copies of a model add gradients, as along `replicate`.
const axisColor = name => Object.hasOwn(AXIS_COLORS, name) ? AXIS_COLORS[name] : name.includes('_') ? AXIS_COLORS.replicate : 'var(--mem)';
const axisTag = (name, text) => h('span', { class: 'axistag' }, h('i', { class: 'sw', style: { background: axisColor(name) } }), text);
