// The headline, and the loop that asks the program for news.
let silentSince = 0, paused = false;

function headline() {
  const step = lastStep(), held = heldPointsOf(LIVE).pop(), p = pointsOf(LIVE).pop(), at = 'step ' + count(step) + ' of ' + count(LIVE.steps);
  const result = held && known(held.accuracy) ? LIVE.held_out + ' ' + percent(held.accuracy, 1) + ' right' : held && known(held.loss) ? LIVE.held_out + ' loss ' + number(held.loss) : p && known(p.loss) ? 'loss ' + number(p.loss) : '';
  if (LIVE.state === 'done') return 'Done after ' + count(step) + ' steps' + (result ? ': ' + result : '') + '.';
  if (LIVE.state !== 'running') return (LIVE.state === 'failed' ? 'Failed' : 'Stopped') + ' after ' + at + '.';
  if (!step) return 'The first step has not ended yet.';
  const epoch = LIVE.epoch_steps ? 'Epoch ' + Math.ceil(step / LIVE.epoch_steps) + ' of ' + Math.round(LIVE.steps / LIVE.epoch_steps) + ', ' : '';
  return (epoch ? epoch + at : 'S' + at.slice(1)) + (result ? ': ' + result : '') + '.';
}
function lead() {
  const step = lastStep(), p = pointsOf(LIVE).pop(), parts = [];
  if (p && known(p.loss)) parts.push('Training loss ' + number(p.loss) + (known(p.accuracy) ? ', accuracy ' + percent(p.accuracy, 1) : '') + '.');
  if (p && known(p.rate)) parts.push(number(p.rate) + ' ' + LIVE.unit + ' a second.');
  if (LIVE.seconds > 0) parts.push('Trained for ' + duration(LIVE.seconds) + (LIVE.state === 'running' && step ? ', about ' + duration(LIVE.seconds / step * (LIVE.steps - step)) + ' left.' : '.'));
  return parts.join(' ');
}
function showHead() {
  put('what', LIVE.program + ': ' + LIVE.title);
  put('answer', headline());
  put('lead', lead());
  $('done').value = LIVE.steps ? lastStep() / LIVE.steps : 0;
  document.title = headline() + ' ' + LIVE.title;
  const silent = silentSince && (Date.now() - silentSince) / 1000;
  const [first, ...more] = LIVE.message.split('\n');
  put('notes', LIVE.state !== 'running' ? [first && h('p', { class: 'warning ' + LIVE.state }, first), more.length ? h('pre', {}, more.join('\n')) : null] : !SERVED ? h('p', { class: 'warning' }, 'The run had not ended when this file was written.')
    : silent >= 3 ? h('p', { class: 'warning' }, 'No answer from the program for ' + duration(silent) + '. If it has ended, its last page is ' + LIVE.folder + '/live.html.') : null);
  // A screen reader hears of measurements and of the end, and not of each step.
  const said = LIVE.state + LIVE.evaluated.length;
  if ($('said').dataset.said !== said) { $('said').dataset.said = said; put('said', headline()); }
  put('facts', LIVE.facts.map(([name, value]) => name + ' ' + value).join(', ') + '.');
  put('where', 'Run folder: ' + LIVE.folder + (SERVED ? '. This page stays there as live.html.' : ''));
}
function showNews() { showHead(); showCourse(); showRanks(); showTables(); }

async function ask(name) {
  const answer = await fetch(name, { cache: 'no-store', signal: AbortSignal.timeout(5000) });
  if (!answer.ok) throw new Error(name + ': ' + answer.status);
  return answer.json();
}
async function watch() {
  const note = name => { document.documentElement.dataset[name] = String(Number(document.documentElement.dataset[name] || 0) + 1); };  // for tests
  for (; LIVE.state === 'running'; await new Promise(done => setTimeout(done, 1000))) {
    if (paused) { note('rested'); continue; }
    try {
      const news = await ask('live.json');
      if (news.schema !== LIVE.schema) throw new Error('another version');
      if (news.sample_changes !== LIVE.sample_changes) { SAMPLES = await ask('samples.json'); showSamples(); }
      LIVE = news;
      silentSince = 0;
      showNews();
    } catch {
      silentSince = silentSince || Date.now();
      showHead();
    }
    note('asked');
  }
}

readUrl();
showTheme();
showNews();
showSamples();
wireTheme();
$('btn-pause').onclick = () => { paused = !paused; $('btn-pause').setAttribute('aria-pressed', String(paused)); };
if (!SERVED || LIVE.state !== 'running') $('btn-pause').remove();
$('scrub').oninput = e => { const step = Number(e.target.value); state.step = step >= lastStep() ? -1 : step; showCourse(); };
$('scrub').onchange = writeUrl;
$('numbers').addEventListener('toggle', showTables);
let width = window.innerWidth;
new ResizeObserver(() => { if (Math.abs(window.innerWidth - width) > 2) { width = window.innerWidth; showCourse(); } }).observe(document.body);
addEventListener('hashchange', () => { readUrl(); showTheme(); showCourse(); });
addEventListener('beforeprint', () => { $('numbers').open = true; showTables(); });
document.documentElement.dataset.ready = '1';
if (SERVED) watch();
