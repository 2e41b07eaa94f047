// A predicted step as a mode for the clock: the planner's simulation has a timeline, and the memory over the step. It follows
// the sliders of "What if", so with untouched sliders it is the prediction of the measured machine.
const PREDICTED = 'predicted ';  // before the name of the mode, in the address
const PREDICTABLE = DATA.modes.filter(m => DATA.profile && predictor_of(m.predicted_as));

// Made once for the same sliders; null if the mode cannot run on so many devices.
let madeFor = '', made = new Map();
function predictedMode(m) {
  const sliders = ['n', 'bw', 'lat', 'micro', 'bucket', 'own'].map(k => state[k]).join();
  if (sliders !== madeFor) made = new Map();
  madeFor = sliders;
  if (!made.has(m)) made.set(m, makePredicted(m));
  return made.get(m);
}
// The planner's items as the kinds of measured memory, thinned to 240 samples as that is.
const ITEMS_OF = { parameters: ['parameters'], gradients: ['gradients', 'buckets'], optimizer: ['optimizer'], activations: ['activations'], other: ['data', 'workspace'] };
function predictedMemory(p) {
  const kept = [];
  let interval = -1;
  for (const s of p.memory_over_time.samples) {
    const own = Math.floor(s.begin_s / p.step_s * 240), last = kept[kept.length - 1];
    if (own !== interval) kept.push({ ...s });
    else if (total(s.items) > total(last.items)) last.items = s.items;
    interval = own;
  }
  return { device: p.memory_over_time.device, samples: kept.map(s => [s.begin_s * 1000, ...KINDS.map(k => Math.max(0, sum((ITEMS_OF[k] || []).map(i => s.items[i]))))]) };
}
function makePredicted(m) {
  const p = planned(m, state.n, simLink()), measured = modeNamed(m.name), here = isHere(state.n);
  if (!p) return null;
  const path = new Set(critical_path(p)), spans = p.timeline.map((s, i) => ({ ...s, critical: path.has(i) }));
  const rows = range(p.rows).map(r => spans.filter(s => s.row === r)), count = p.memory.length;
  return { name: m.name + (here ? ', predicted' : ', simulated'), predicted: true, step_ms: p.step_s * 1000, family: m.family, peak_bytes: p.memory.map(total),
    devices: range(count).map(d => 'device ' + d), memory_over_time: predictedMemory(p),
    objects: range(Math.min(count, LANES)).flatMap(d => rows[Math.floor(d * p.rows / count)].map(s => ({ ...s, device: d, begin: s.begin * 1000, end: s.end * 1000 }))),
    long_why: here ? 'Predicted from the costs of one device; ' + (measured ? 'measured: ' + ms(measured.step_ms) + ' ms.' : 'the mode has no result.') : 'Simulated for ' + state.n + (state.n === 1 ? ' device' : ' devices') + ' and the other sliders of \u201cWhat if\u201d.' };
}
// A measured mode, or the prediction of one; null if there is none.
function shownNamed(name) {
  const m = PREDICTABLE.find(x => PREDICTED + x.name === name);
  return m ? predictedMode(m) : modeNamed(name);
}
const showsPrediction = () => [state.a, state.b].some(name => !modeNamed(name));
const predictionOptions = chosen => PREDICTABLE.filter(predictedMode)
  .map(m => h('option', { value: PREDICTED + m.name, selected: PREDICTED + m.name === chosen ? '' : null }, m.name + (isHere(state.n) ? ', predicted' : ', simulated')));
