// Elements, and numbers as text. Elements are made of text nodes only, so no name is ever parsed as HTML.
function fill(el, attrs, kids) {
  for (const [k, x] of Object.entries(attrs || {})) {
    if (x === undefined || x === null || x === false) continue;
    if (k === 'style' && typeof x === 'object') for (const [a, b] of Object.entries(x)) el.style.setProperty(a, b);
    else if (k.startsWith('on')) el.addEventListener(k.slice(2), x);
    else el.setAttribute(k, x);
  }
  for (const kid of kids.flat(Infinity)) if (kid !== null && kid !== undefined && kid !== false) el.append(kid);
  return el;
}
const h = (tag, attrs, ...kids) => fill(document.createElement(tag), attrs, kids);
const v = (tag, attrs, ...kids) => fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attrs, kids);
const $ = id => document.getElementById(id);
function put(id, ...kids) {
  const el = typeof id === 'string' ? $(id) : id;
  el.replaceChildren();
  return fill(el, {}, kids);
}

const MiB = 1 << 20;
const range = n => Array.from({ length: n }, (_, i) => i);
const sum = list => list.reduce((a, b) => a + b, 0);
const clamp = (x, low, high) => Math.min(high, Math.max(low, x));
function median(list) {
  const s = [...list].sort((a, b) => a - b), half = Math.floor(s.length / 2);
  return s.length % 2 ? s[half] : (s[half - 1] + s[half]) / 2;
}
const most = (list, key) => list.reduce((a, b) => key(b) > key(a) ? b : a);

// As verdict.cpp writes numbers.
const ms = x => x.toFixed(x >= 99.95 ? 0 : x >= 0.995 ? 1 : 2);
const mib = b => (b / MiB).toFixed(b < 10 * MiB ? 1 : 0);
const times = x => x.toFixed(x >= 9.95 ? 0 : 1) + '\u00d7';
const percent = (x, digits = 0) => (100 * x).toFixed(digits) + '%';
const signed = (x, digits = 1) => (x >= 0 ? '+' : '\u2212') + Math.abs(100 * x).toFixed(digits) + '%';

// Long names of modes break behind commas.
const breakable = name => name.split(/(?<=,)/).flatMap((part, i) => i ? [h('wbr'), part] : [part]);
const modeTag = name => h('span', { class: 'mode' }, breakable(name));
const narrow = () => window.innerWidth <= 900;

// Ticks at 1, 2 or 5 times a power of ten, about `count` of them.
function ticksOf(end, count) {
  if (!(end > 0)) return [0];
  const raw = end / count;
  let p = 1;
  while (p > raw) p /= 10;
  while (p * 10 <= raw) p *= 10;
  const step = [1, 2, 5, 10].map(k => k * p).find(k => raw <= k * 1.0000001);
  return range(Math.floor(end / step + 1e-9) + 1).map(i => Number((i * step).toPrecision(6)));
}

// A string of a picture must not be wider than its place. 0.62 em is wide for a sans-serif font.
const fits = (text, width, size = 12) => text.length * size * 0.62 <= width;
function cut(text, width, size = 12) {
  const n = Math.floor(width / (size * 0.62));
  return text.length <= n ? text : text.slice(0, Math.max(1, n - 1)) + '\u2026';
}
const shortened = (text, n) => text.length <= n ? text : text.slice(0, n - 1) + '\u2026';

// A table that scrolls by itself if it is wider than the page.
function plainTable(caption, head, rows) {
  return h('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption }, h('table', { class: 'plain' }, h('caption', {}, caption),
    h('thead', {}, h('tr', {}, head.map(x => h('th', { scope: 'col' }, x)))),
    h('tbody', {}, rows.map(r => h('tr', {}, r.map((x, i) => h(i ? 'td' : 'th', i ? {} : { scope: 'row' }, x)))))));
}
