// A predicted step as a mode for the clock: the planner's simulation has a timeline, and the peak of the memory. It follows
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
function makePredicted(m) {
  const p = planned(m, state.n, simLink()), measured = modeNamed(m.name), here = isHere(state.n);
  if (!p) return null;
  const rows = range(p.rows).map(r => p.timeline.filter(s => s.row === r)), count = p.memory.length;
  return { name: m.name + (here ? ', predicted' : ', simulated'), predicted: true, step_ms: p.step_s * 1000, family: m.family, peak_bytes: p.memory.map(total),
    devices: range(count).map(d => 'device ' + d),
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
