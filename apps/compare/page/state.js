// What the reader has chosen stands in the address, so that a link shows the same page.
const HELD_MIB = Number(((DATA.memory_limit_bytes || 0) / MiB).toPrecision(6));
const state = { limit: HELD_MIB * MiB < Math.max(0, ...OK.map(peakOf)) ? HELD_MIB : 0, a: '', b: '', t: -1, path: 0, n: N, bw: 0, lat: 0,
  micro: DATA.options.micro_batches, bucket: DATA.options.bucket_cap_bytes / MiB, own: 0, theme: '' };
const defaults = { ...state };
let guessing = false;

function readUrl() {
  Object.assign(state, defaults);
  for (const part of location.hash.slice(1).split('&')) {
    let k, x;
    try { [k, x] = part.split('=').map(decodeURIComponent); } catch { continue; }
    if (!Object.hasOwn(defaults, k) || x === undefined) continue;
    if (typeof defaults[k] === 'string') state[k] = x;
    else if (x !== '' && Number.isFinite(Number(x))) state[k] = Math.max(k === 't' ? -1 : 0, Number(x));
  }
  checkKnobs();
  for (const which of ['a', 'b']) if (!shownNamed(state[which])) state[which] = defaults[which];
  if (!['dark', 'light'].includes(state.theme)) state.theme = '';
}
function writeUrl() {
  const parts = Object.keys(defaults).filter(k => state[k] !== defaults[k])
    .map(k => k + '=' + encodeURIComponent(typeof state[k] === 'number' ? Number(state[k].toPrecision(6)) : state[k]));
  history.replaceState(null, '', parts.length ? '#' + parts.join('&') : location.pathname + location.search);
}
