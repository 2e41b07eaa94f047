// Puts the parts together: what is drawn anew when the reader changes something.
function update(what) {
  if (what === 'limit') { showTable(); showTables(); showPair(); showSim(); showSweep(); }
  else if (what === 'guess') { showGuess(); showTable(); }
  else if (what === 'pair') showPair();
  else if (what === 'sim') {
    showSim();
    if (OK.length && showsPrediction()) showPair();
  }
  else if (what === 'other') showTable();
  writeUrl();
}
function showRun() {
  const run = DATA.run, host = run.host, load = run.load_begin === null ? '' : '; load average ' + run.load_begin.toFixed(1) + ' before, ' + run.load_end.toFixed(1) + ' after';
  put('what', h('span', { class: 'desk' }, DATA.setup + (run.began ? '; ' + run.began.slice(0, 10) : '')), h('span', { class: 'phone' }, DATA.options.model + ' on ' + N + (N === 1 ? ' device, ' : ' devices, ') + DATA.options.rounds + (DATA.options.rounds === 1 ? ' round' : ' rounds')));
  put('machine', [host.cpu, host.cores && host.cores + ' cores', host.memory_bytes && (host.memory_bytes / 2 ** 30).toFixed(0) + ' GiB', host.os, host.compiler, ...host.gpus, 'Tapestry ' + DATA.version].filter(Boolean).join(', '),
    '. Began ' + run.began + ', took ' + run.seconds.toFixed(0) + ' s' + load + '.');
  put('how', 'Every mode started from the same weights and trained on the same batch. Times are those of the median round; parts are means over the devices. Each mode ran in processes of its own.');
  put('command', 'tapestry-compare ' + run.command.map(a => /^[\w.,=:/+-]+$/.test(a) ? a : "'" + a.replaceAll("'", "'\\''") + "'").join(' '));
}
function showAll() {
  showTheme();
  showLegend();
  showGuess();
  showTable();
  showTables();
  showPair();
  showCards();
  showKnobs();
  showSim();
  showSweep();
  showTrust();
}

choosePair();
readUrl();
showRun();
wireOther();
if (!SINGLE || !ASKED.length) $('btn-guess').remove();
else $('btn-guess').onclick = () => { guessing = !guessing; for (const name of Object.keys(guesses)) delete guesses[name]; update('guess'); };
wireTheme();
$('btn-link').onclick = async e => {
  const button = e.currentTarget, before = [...button.childNodes];
  try { await navigator.clipboard.writeText(location.href); button.textContent = 'Copied'; } catch { button.textContent = 'See the address'; }
  setTimeout(() => put(button, before), 1500);
};
if (OK.length) $('btn-picture').onclick = savePicture;
else $('btn-picture').remove();
$('scrub').oninput = e => { state.t = Number(e.target.value); showMoment(); };
$('scrub').onchange = writeUrl;
$('knobs').addEventListener('submit', e => e.preventDefault());
let width = window.innerWidth;
new ResizeObserver(() => { if (Math.abs(window.innerWidth - width) > 2) { width = window.innerWidth; showTable(); showPair(); showSim(); showTrust(); } }).observe(document.body);
addEventListener('hashchange', () => { readUrl(); showAll(); });
addEventListener('beforeprint', () => document.querySelectorAll('details').forEach(d => { d.open = true; }));
showAll();
document.documentElement.dataset.ready = '1';
