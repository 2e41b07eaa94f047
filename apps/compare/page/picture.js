// A picture of 1200 by 630 to share, drawn anew, so that it needs no style sheet.
function pictureSvg() {
  const k = ranking(), list = k.places.slice(0, 11).map(p => p.mode), W = 1200, H = 630, css = getComputedStyle(document.documentElement), c = name => css.getPropertyValue('--' + name).trim();
  const svg = v('svg', { xmlns: 'http://www.w3.org/2000/svg', viewBox: '0 0 ' + W + ' ' + H, width: W, height: H, 'font-family': 'system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif' });
  const text = (x, y, s, o = {}) => svg.append(v('text', { x, y, fill: o.fill || c('ink'), 'font-size': o.size || 18, 'font-weight': o.bold ? 600 : 400, 'text-anchor': o.anchor || 'start' }, s));
  svg.append(v('rect', { width: W, height: H, fill: c('bg') }), v('pattern', { id: 'idle', width: 5, height: 5, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, v('rect', { width: 1.5, height: 5, fill: c('hatch') })));
  const lines = [''];
  for (const word of $('answer').textContent.split(' ')) if (lines[lines.length - 1].length + word.length > 66) lines.push(word + ' '); else lines[lines.length - 1] += word + ' ';
  const shown = lines.slice(0, 3), top = 34 * (shown.length - 1), rowH = Math.min(38, (H - 180 - top) / Math.max(1, list.length));
  shown.forEach((line, i) => text(48, 52 + 34 * i, line.trim() + (i === 2 && lines.length > 3 ? '\u2026' : ''), { size: 27, bold: true }));
  text(48, 80 + top, cut(DATA.setup.replace(/ \([^)]*\)/, ''), W - 96, 14), { size: 16, fill: c('soft') });
  const x0 = 318, x1 = 930, X = t => x0 + Math.min(t, AXIS.end) / AXIS.end * (x1 - x0), colors = { fwd: c('fwd'), bwd: c('bwd'), upd: c('upd'), comm: c('comm'), idle: 'url(#idle)' };
  list.forEach((m, i) => { if (k.first.includes(m)) svg.append(v('rect', { x: 36, y: 112 + top + i * rowH, width: W - 72, height: rowH, fill: c('tint') })); });
  if (SINGLE && PERFECT < AXIS.end) {
    svg.append(v('line', { x1: X(PERFECT), x2: X(PERFECT), y1: 112 + top, y2: 112 + top + list.length * rowH, stroke: c('faint'), 'stroke-dasharray': '5 4' }));
    text(X(PERFECT), 106 + top, 'perfect split', { size: 14, anchor: 'middle', fill: c('soft') });
  }
  list.forEach((m, i) => {
    const y = 114 + top + i * rowH;
    let x = x0;
    text(x0 - 14, y + 20, cut(m.name, 250, 18), { anchor: 'end', bold: k.first.includes(m) });
    for (const [key, cls] of PARTS) {
      const w = Math.min(m[key] / AXIS.end * (x1 - x0), x1 - x);
      svg.append(v('rect', { x, y: y + 4, width: Math.max(0, w - 1), height: 18, fill: colors[cls] }));
      x += w;
    }
    for (const q of roundsOf(m)) if (q < AXIS.end) svg.append(v('circle', { cx: X(q), cy: y + 28, r: 2.2, fill: c('ink') }));
    text(x1 + 112, y + 20, ms(m.step_ms) + ' ms', { bold: true, anchor: 'end' });
    text(W - 48, y + 20, mib(peakOf(m)) + ' MiB', { anchor: 'end', fill: c('soft') });
  });
  let x = 48;
  for (const [, cls, label] of PARTS) {
    svg.append(v('rect', { x, y: H - 34, width: 16, height: 12, fill: colors[cls] }));
    text(x + 23, H - 23, label, { size: 15, fill: c('soft') });
    x += 48 + label.length * 8.4;
  }
  text(W - 48, H - 23, DATA.run.began.slice(0, 10) + ' \u00b7 tapestry-compare', { size: 15, anchor: 'end', fill: c('soft') });
  return svg;
}
function savePicture() {
  const url = URL.createObjectURL(new Blob([new XMLSerializer().serializeToString(pictureSvg())], { type: 'image/svg+xml' })), image = new Image();
  image.onload = () => {
    const canvas = h('canvas', { width: 2400, height: 1260 });
    canvas.getContext('2d').drawImage(image, 0, 0, 2400, 1260);
    h('a', { href: canvas.toDataURL('image/png'), download: 'modes.png' }).click();
    URL.revokeObjectURL(url);
  };
  image.src = url;
}
