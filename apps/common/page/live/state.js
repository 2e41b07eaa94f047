// What the page shows: LIVE, the state of the run, and SAMPLES. README.md describes both. The page of a running program
// asks for new ones; a page from a file has the last ones.
let { live: LIVE, samples: SAMPLES } = JSON.parse($('data').textContent);
const SERVED = location.protocol === 'http:';

// What the reader has chosen stands in the address. `step` is -1 for the last one.
const state = { step: -1, theme: '' };
function readUrl() {
  const chosen = new Map(location.hash.slice(1).split('&').map(part => part.split('=')));
  state.theme = ['dark', 'light'].includes(chosen.get('theme')) ? chosen.get('theme') : '';
  state.step = /^\d{1,15}$/.test(chosen.get('step')) ? Number(chosen.get('step')) : -1;
}
function writeUrl() {
  const parts = [state.step >= 0 && 'step=' + state.step, state.theme && 'theme=' + state.theme].filter(Boolean);
  history.replaceState(null, '', parts.length ? '#' + parts.join('&') : location.pathname + location.search);
}

const count = x => x.toLocaleString('en');
const number = x => x === null ? 'not a number' : x && (Math.abs(x) < 1e-3 || Math.abs(x) >= 1e7) ? x.toExponential(1) : Math.abs(x) >= 1000 ? count(Math.round(x)) : Number(x.toPrecision(4)).toString();
function duration(seconds) {
  const s = Math.round(seconds), two = x => String(x).padStart(2, '0');
  return s >= 3600 ? Math.floor(s / 3600) + ':' + two(Math.floor(s / 60) % 60) + ':' + two(s % 60) : Math.floor(s / 60) + ':' + two(s % 60);
}
const pointOf = ([step, loss, low, high, accuracy, rate, memory]) => ({ step, loss, low, high, accuracy, rate, memory });
const heldOf = ([step, loss, accuracy]) => ({ step, loss, accuracy });
const pointsOf = live => live.points.map(pointOf);
const heldPointsOf = live => live.evaluated.map(heldOf);
