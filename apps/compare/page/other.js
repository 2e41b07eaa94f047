// Compare with B: another result of the program, as JSON or as a page.
let OTHER = null;
const inOther = m => OTHER && OTHER.modes.find(x => x.name === m.name && x.status === 'ok') || null;

// The place, from both ends of n sorted values, of the interval of the median: see interval_index in verdict.cpp.
function intervalIndex(n) {
  let tail = 0, coins = 1, k = 0;
  for (let i = 0; i < n; ++i) coins /= 2;
  for (let i = 0; 2 * i < n; ++i) {
    tail += coins;
    if (2 * tail > 0.05) break;
    k = i + 1;
    coins = coins * (n - i) / (i + 1);
  }
  return k;
}
// Rounds of two runs cannot be paired, so the runs differ only if the intervals of their medians do not meet.
function unpaired(a, b) {
  const interval = m => { const s = roundsOf(m).sort((x, y) => x - y), k = intervalIndex(s.length); return k ? [s[k - 1], s[s.length - k]] : null; };
  const ia = interval(a), ib = interval(b);
  if (!ia || !ib) return 'undecided';
  return ib[0] > ia[1] ? 'slower' : ib[1] < ia[0] ? 'faster' : 'undecided';
}

function otherFrom(text, name) {
  let json = text;
  if (text.trimStart().startsWith('<')) {
    // Parsed as a document that is never shown and runs no script.
    const island = new DOMParser().parseFromString(text, 'text/html').getElementById('data');
    if (!island) throw new Error('it is no page of tapestry-compare');
    json = island.textContent;
  }
  const data = JSON.parse(json);
  if (data.schema !== 2 || !Array.isArray(data.modes)) throw new Error('it is no result of this version of tapestry-compare');
  for (const m of data.modes) {
    if (typeof m.name !== 'string' || typeof m.status !== 'string') throw new Error('a mode has no name');
    if (m.status === 'ok' && (!Number.isFinite(m.step_ms) || !Array.isArray(m.rounds) || PARTS.some(([key]) => !Number.isFinite(m[key])))) throw new Error('the mode ' + m.name + ' lacks its times');
  }
  return { modes: data.modes, setup: String(data.setup), name };
}
async function chooseOther(file) {
  try {
    OTHER = otherFrom(await file.text(), file.name);
  } catch (e) {
    OTHER = null;
    put('compared', h('p', { class: 'warning' }, 'Cannot compare with ' + file.name + ': ' + e.message + '. Choose a file of --json or --html.'));
    return;
  }
  update('other');
}
function showOther() {
  $('btn-compare').setAttribute('aria-pressed', String(!!OTHER));
  if (!OTHER) return put('compared');
  const both = OK.filter(inOther), words = both.map(m => unpaired(m, inOther(m))), count = w => words.filter(x => x === w).length;
  if (!both.length) return put('compared', h('p', { class: 'note strongnote' }, h('b', {}, 'B is ' + OTHER.name + ': '), 'no mode is in both results.'));
  const best = fastestOf(both.map(inOther));
  return put('compared', h('p', { class: 'note strongnote' }, h('b', {}, 'B is ' + OTHER.name + ': '), 'there ', modeTag(best.name), ' is fastest, ' + ms(best.step_ms) + ' ms. Of ' + both.length +
    ' modes in both results, B is slower in ' + count('slower') + ', faster in ' + count('faster') + ', and ' + count('undecided') + ' are not decided (\u2248: their intervals meet). The thin bars are B: ' + OTHER.setup + '.'));
}
function wireOther() {
  const input = h('input', { type: 'file', accept: '.json,.html', hidden: '', id: 'other-file', 'aria-label': 'Result B' });
  input.addEventListener('change', () => { if (input.files[0]) chooseOther(input.files[0]); input.value = ''; });
  document.body.append(input);
  $('btn-compare').onclick = () => { if (OTHER) { OTHER = null; update('other'); } else input.click(); };
  document.addEventListener('dragover', e => e.preventDefault());
  document.addEventListener('drop', e => { e.preventDefault(); if (e.dataTransfer.files[0]) chooseOther(e.dataTransfer.files[0]); });
}
