// What the model wrote, the last first, and pictures of what it gets wrong.
function showSamples() {
  const texts = SAMPLES.filter(s => 'text' in s).reverse(), pictures = SAMPLES.filter(s => 'svg' in s);
  $('samples').hidden = !SAMPLES.length;
  put('sample-list',
    pictures.length ? h('div', { class: 'pictures' }, pictures.map(s => h('figure', {}, h('figcaption', {}, s.title + ', after step ' + count(s.step)),
      h('img', { alt: s.title, src: 'data:image/svg+xml,' + encodeURIComponent(s.svg) })))) : null,
    texts.length ? h('div', { class: 'texts' }, texts.map(s => [h('h3', {}, 'after step ' + count(s.step)), h('pre', {}, s.text)])) : null);
}
function showTables() {
  if (!$('numbers').open) return;
  const cell = x => known(x) ? number(x) : '', points = pointsOf(LIVE), every = Math.ceil(points.length / 50), held = heldPointsOf(LIVE);
  const right = [...points, ...held].some(p => known(p.accuracy)), accuracy = p => right ? [known(p.accuracy) ? percent(p.accuracy, 2) : ''] : [];
  put('tables',
    plainTable(LIVE.held_out[0].toUpperCase() + LIVE.held_out.slice(1), ['step', 'loss', ...(right ? ['accuracy'] : [])], held.map(p => [count(p.step), cell(p.loss), ...accuracy(p)])),
    plainTable('Training', ['step', 'loss', 'least', 'greatest', ...(right ? ['accuracy'] : []), LIVE.unit + '/s', 'MiB'],
      points.filter((p, i) => (points.length - 1 - i) % every === 0).map(p => [count(p.step), cell(p.loss), cell(p.low), cell(p.high), ...accuracy(p), cell(p.rate), sum(p.memory) ? mib(sum(p.memory)) : ''])));
}
