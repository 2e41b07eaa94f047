// A form that computes the memory of a language model's training. The planner of tapestry-compare's page (the twin of
// distributed/planner) predicts it; this file makes the profile that the planner reads. BLOCKS are the profiles of a GPT-2 of
// width 192, 64 tokens and 1024 words, which tapestry-compare measured for 1 to 8 ranks along `tensor`, each curve of bytes
// over samples as [bytes for no samples, bytes a sample]. Bytes of activations grow with tokens x width (tokens x words in
// the head and the loss), and bytes of matrices with width x width (width x words), so other sizes follow from these.
const WIDTH = 192, TOKENS = 64, WORDS = 1024;

// The curve of a block for another size. `c` has the ratios of both sizes.
function scaledCurve([none, each], part, c) {
  if (part === 'loss') each *= c.words * c.tokens;
  else if (part === 'head') {  // so many logits, and the rest are features
    const logits = Math.floor(each / (4 * TOKENS * WORDS / c.ranks)) * 4 * TOKENS * WORDS / c.ranks;
    each = (logits * c.words + (each - logits) * c.width) * c.tokens;
  } else each *= c.width * c.tokens;
  none = part === 'loss' ? none : scaledParameter(none, part, c);
  return [[0, none * c.number], [1, (none + each) * c.number]];
}
// Of a parameter, or of bytes that do not depend on the batch: those of a matrix, or of vectors.
function scaledParameter(bytes, part, c) {
  const size = Math.abs(bytes);
  if (part === 'block') return bytes * (size >= 4 * WIDTH * WIDTH / 8 ? c.width * c.width : c.width);
  if (size < 0.5 * 4 * WIDTH * WORDS / c.ranks) return bytes * c.width * (size >= 4 * WIDTH * TOKENS / 2 ? c.tokens : 1);
  const words = 4 * WIDTH * WORDS / c.ranks;
  return words * Math.sign(bytes) * c.width * c.words + (bytes - words * Math.sign(bytes)) * c.width * (part === 'embeddings' ? c.tokens : 1);
}
function scaledBlock(name, part, c, seconds) {
  const b = BLOCKS[c.ranks][part], curve = x => scaledCurve(x, part, c);
  const curves = Object.fromEntries(Object.keys(b).filter(k => k.endsWith('_bytes')).map(k => [k, curve(b[k])]));
  return { name, ...curves, parameter_bytes: b.parameters.map(x => Math.round(scaledParameter(x, part, c) * c.number)),
    backward: b.backward.map(([parameter, peak, accumulate, end]) => ({ parameter, peak_bytes: curve(peak), accumulate_bytes: curve(accumulate), end_bytes: curve(end) })),
    forward_s: [[0, 0], [1, seconds]], backward_s: [[0, 0], [1, 2 * seconds]], accumulate_s: 0, bucket_copy_s: 0, update_s: 0,
    input_grad_s: 0, weight_grad_s: 0, weight_grad_accumulate_s: 0, parts: [], layers_forward: [], layers_backward: [] };
}
// Sizes are {layers, width, tokens, words, bytes (of a number)}.
function profileOf(sizes, ranks, state) {
  const c = { width: sizes.width / WIDTH, tokens: sizes.tokens / TOKENS, words: sizes.words / WORDS, number: sizes.bytes / 4, ranks };
  const second = 12 * sizes.width * sizes.width, head = sizes.width * sizes.words;  // what balances stages: products
  return { blocks: [scaledBlock('embeddings', 'embeddings', c, 0), ...range(sizes.layers).map(i => scaledBlock('block' + (i + 1), 'block', c, second)), scaledBlock('head', 'head', c, head)],
    loss: scaledBlock('loss', 'loss', c, 0), input_sample_bytes: 8 * sizes.tokens, target_sample_bytes: 8 * sizes.tokens, optimizer_state: state,
    contention: { forward: 1, backward: 1, update: 1 }, stages: [], zero_bubble_stages: [], dispatch_s: 0, divided: [] };
}

class Refusal extends Error {}
// The plan of a text such as "pipeline=2,replicate=2:zero=1", as the planner has it.
const AXES = ['pipeline', 'replicate', 'shard', 'tensor'];
function planOf(text) {
  const axes = [];
  for (const word of text.trim() === 'single' ? [] : text.split(',')) {
    const [, name, size, options] = /^\s*(\w+)=(\d+)((?::[\w-]+=[\w-]+)*)\s*$/.exec(word) || [];
    if (!AXES.includes(name)) throw new Refusal('"' + word.trim() + '" is not one of pipeline=N, replicate=N, shard=N and tensor=N, or single');
    const axis = { ...axis_of_mesh(name, Number(size)), sum: { replicate: 'buckets', shard: 'units' }[name] || 'none', schedule: name === 'pipeline' ? '1f1b' : '' };
    for (const [key, value] of options.split(':').filter(Boolean).map(o => o.split('='))) {
      if (key === 'zero' && name === 'replicate' && ['1', '2'].includes(value)) axis.zero = Number(value);
      else if (key === 'schedule' && name === 'pipeline' && ['1f1b', 'gpipe'].includes(value)) axis.schedule = value;
      else throw new Refusal('the calculator does not know the option ' + key + '=' + value + ' of ' + name);
    }
    if (axes.some(a => a.name === name)) throw new Refusal(name + ' stands there twice');
    if (axis.size < 1 || axis.size > 4096) throw new Refusal(name + '=' + size + ': give a size from 1 to 4096');
    if (axis.size > 1) axes.push(axis);
  }
  axes.sort((a, b) => AXES.indexOf(a.name) - AXES.indexOf(b.name));
  const stages = axes.some(a => a.schedule);
  for (const a of axes) a.keeps_whole = a.name === 'shard' && stages;
  return { splits_model: stages, one_process: false, axes };
}
const STATE = { adamw: [2, 6], momentum: [1, 4], sgd: [0, 2] };  // bytes of state for a byte of parameters: f32, and 16 bits with f32 masters
// The memory of each kind of device: [{device, items}].
function calculate(o) {
  const plan = planOf(o.parallel), tensor = plan.axes.find(a => a.layers), ranks = tensor ? tensor.size : 1, devices = plan.axes.reduce((n, a) => n * a.size, 1);
  for (const [key, most] of [['layers', 1000], ['width', 1e6], ['words', 1e7], ['tokens', 1e7], ['batch', 1e7], ['micro', 1e5]])
    if (!(Number.isInteger(o[key]) && o[key] >= 1 && o[key] <= most)) throw new Refusal('give a whole number from 1 to ' + most + ' as ' + LABELS[key]);
  if (!(ranks in BLOCKS)) throw new Refusal('tensor=' + ranks + ' was not measured: choose 2, 4 or 8');
  const parts = plan.axes.filter(a => a.sum !== 'none').reduce((n, a) => n * a.size, 1), stages = plan.splits_model ? plan.axes[0].size : 1;
  if (o.batch < parts) throw new Refusal(o.batch + ' sequences cannot be divided among ' + parts + ' ranks; choose a larger batch');
  if (stages > o.layers + 2) throw new Refusal(stages + ' stages for ' + (o.layers + 2) + ' blocks; choose fewer');
  const profile = profileOf({ layers: o.layers, width: o.width, tokens: o.tokens, words: o.words, bytes: o.precision === 'f32' ? 4 : 2 }, ranks, STATE[o.optimizer][o.precision === 'f32' ? 0 : 1]);
  const cost = { latency_s: 1e-6, s_per_byte: 1e-10 }, one = { forward: 1, backward: 1, update: 1 }, all = { message: cost, gather_message: cost, scatter_message: cost, peer_message: cost, overlap_slowdown: 1, compute_stall: 0, contention: one };
  const link = { copy: cost, broadcast: cost, add: cost, local: all, ranks: all, cross: all, master_contention: one };
  if (tensor) profile.divided = [{ ...profile, axes: 'tensor=' + ranks }];
  const p = predict(plan, profile, link, { batch_size: o.batch, devices, device_type: 'cpu', micro_batches: o.micro, first_bucket_bytes: MiB, bucket_cap_bytes: 25 * MiB, split: [] });
  if (!p) throw new Refusal('the planner does not know ' + o.parallel);
  const alike = p.memory.length / stages, rows = range(stages).map(s => p.memory[Math.floor(s * alike)]);
  return { devices, rows };
}

const LABELS = { layers: 'layers', width: 'width', words: 'words of the vocabulary', tokens: 'tokens of a sequence', batch: 'sequences of a step, on all devices', micro: 'micro-batches of a pipeline' };
const DEFAULTS = { layers: 12, width: 768, words: 50257, tokens: 1024, batch: 8, micro: 8, precision: 'f32', optimizer: 'adamw', parallel: 'replicate=2,shard=4' };
function showCalculator(place) {
  const chosen = { ...DEFAULTS }, out = h('div', { id: 'memory-result', 'aria-live': 'polite' });
  const shown = bytes => bytes >= 100 * 1024 * MiB ? (bytes / 1024 / MiB).toFixed(0) + ' GiB' : bytes >= 1024 * MiB ? (bytes / 1024 / MiB).toFixed(1) + ' GiB' : (bytes / MiB).toFixed(1) + ' MiB';
  const row = (name, cells, tag = 'td') => h('tr', {}, h('th', { scope: 'row' }, name), cells.map(x => h(tag, {}, x)));
  function show() {
    delete out.dataset.peak;
    try {
      const { devices, rows } = calculate(chosen), kinds = ['parameters', 'gradients', 'buckets', 'optimizer', 'activations', 'data', 'workspace'];
      put(out, h('p', {}, devices + (devices === 1 ? ' device with' : rows.length > 1 ? ' devices; those of a stage hold' : ' devices, each with')),
        h('table', {}, h('tbody', {}, rows.length > 1 ? row('stage', rows.map((_, i) => i + 1), 'th') : null,
          kinds.filter(k => rows.some(r => r[k] > 0)).map(k => row(k, rows.map(r => shown(r[k])))), row('at the peak', rows.map(r => shown(total(r)))))));
      out.dataset.peak = rows.map(total).join();
    } catch (e) {
      if (!(e instanceof Refusal)) throw e;
      put(out, h('p', {}, e.message + '.'));
    }
  }
  const field = (key, label, tag, attributes, ...kids) => h('label', {}, h('span', {}, label), h(tag, { name: key, ...attributes, oninput: e => { chosen[key] = e.target.type === 'number' ? Number(e.target.value) : e.target.value; show(); } }, kids));
  const options = (key, all) => all.map(([value, text]) => h('option', { value, selected: value === DEFAULTS[key] ? '' : null }, text));
  put(place, h('form', { onsubmit: e => e.preventDefault() }, Object.entries(LABELS).map(([key, label]) => field(key, label, 'input', { type: 'number', min: 1, value: DEFAULTS[key] })),
    field('precision', 'numbers', 'select', {}, options('precision', [['f32', 'f32'], ['low', 'bf16 or f16, with f32 masters']])),
    field('optimizer', 'optimizer', 'select', {}, options('optimizer', [['adamw', 'AdamW'], ['momentum', 'SGD with momentum'], ['sgd', 'SGD']])),
    field('parallel', 'way of training, as --parallel has it', 'input', { type: 'text', value: DEFAULTS.parallel, spellcheck: 'false' })), out);
  show();
}
document.addEventListener('DOMContentLoaded', () => { const place = $('memory-calculator'); if (place) showCalculator(place); });
