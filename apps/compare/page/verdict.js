// The sentences of verdict.cpp. It has written one answer for each amount of memory at which the answer changes.
const nodesOf = sentence => sentence.map(p =>
  typeof p === 'string' ? p : p.mode !== undefined ? modeTag(p.mode) : h('b', {}, p.strong));
const textOf = sentence => sentence.map(p => typeof p === 'string' ? p : p.mode !== undefined ? p.mode : p.strong).join('');

function answerFor(limitBytes) {
  const last = DATA.answers.length - 1;
  if (!limitBytes) return DATA.answers[last];
  let at = 0;
  for (let i = 0; i <= last; ++i) {
    const from = i === last && OK.length ? Math.max(...OK.map(peakOf)) : DATA.answers[i].limit_bytes || 0;
    if (from <= limitBytes) at = i;
  }
  return DATA.answers[at];
}
function ranking() {
  const answer = answerFor(state.limit * MiB);
  const places = answer.places.map(p => ({ ...p, mode: modeNamed(p.name) }));
  const inside = new Set(places.map(p => p.name));
  return { answer, places, first: places.slice(0, answer.first).map(p => p.mode), over: OK.filter(m => !inside.has(m.name)) };
}

function showAnswer() {
  const { answer } = ranking();
  document.body.classList.toggle('guessing', guessing);
  if (guessing) {
    put('answer', 'How long do ' + N + ' devices need for one step?');
    put('lead', 'One device needs ' + ms(SINGLE.step_ms) + ' ms. Guess before you look: a wrong guess that you notice teaches more than a right number that you read.');
    return;
  }
  const headline = nodesOf(answer.headline);
  // verdict.cpp does not know the slider's value.
  if (state.limit && answer !== DATA.answers[DATA.answers.length - 1] && answer.first) headline[0] = 'Within ' + state.limit + ' MiB a device, ';
  put('answer', headline);
  put('lead', nodesOf(answer.lead));
}
