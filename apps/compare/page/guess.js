// "Guess first": the reader guesses four step times before the page shows them.
const guesses = {};
const ASKED = (() => {  // two of each family, or whatever there is
  const of = family => OK.filter(m => m.family === family), pick = list => list.length > 2 ? [list[0], list[list.length - 1]] : list;
  return [...pick(of('data')), ...pick(of('stages'))];
})();

function showGuess() {
  if ($('btn-guess')) $('btn-guess').setAttribute('aria-pressed', String(guessing));
  if (!guessing) {
    const made = Object.keys(guesses);
    if (!made.length) return put('guess');
    const gaps = made.map(name => ({ m: modeNamed(name), error: guesses[name] / modeNamed(name).step_ms - 1 })).sort((x, y) => Math.abs(x.error) - Math.abs(y.error));
    const worst = gaps[gaps.length - 1];
    return put('guess', h('div', { class: 'guess' }, h('h3', {}, 'Your guesses beside the measurement'),
      h('p', {}, 'Closest: ', modeTag(gaps[0].m.name), ' (' + signed(gaps[0].error, 0) + '). Farthest: ', modeTag(worst.m.name), ' (' + signed(worst.error, 0) + '). ', worst.m.long_why, ' Can you say in one sentence what you had left out?'),
      h('button', { onclick: () => { for (const name of made) delete guesses[name]; update('guess'); } }, 'Clear')));
  }
  const draft = Object.fromEntries(ASKED.map(m => [m.name, SINGLE.step_ms / 2]));
  return put('guess', h('div', { class: 'guess' }, h('h3', {}, 'Your guesses'), h('p', {}, DATA.setup + '. The memory of each mode is shown below.'),
    ASKED.map((m, i) => {
      const text = () => ms(draft[m.name]) + ' ms', out = h('output', {}, text());
      return h('div', { class: 'grow' }, h('label', { for: 'g-' + i }, modeTag(m.name)), h('input', { type: 'range', id: 'g-' + i, min: SINGLE.step_ms / 10, max: SINGLE.step_ms * 1.5, step: 'any', value: draft[m.name], 'aria-valuetext': text(),
        oninput: e => { draft[m.name] = Number(e.target.value); out.textContent = text(); e.target.setAttribute('aria-valuetext', text()); } }), out);
    }),
    h('p', {}, h('button', { onclick: () => { Object.assign(guesses, draft); guessing = false; update('guess'); } }, 'Show the measurement'))));
}
