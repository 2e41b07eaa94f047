// Light or dark: what the reader chose (state.theme, which stands in the address), or else what the system prefers.
function showTheme() {
  const dark = state.theme ? state.theme === 'dark' : matchMedia('(prefers-color-scheme: dark)').matches;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  $('btn-theme').textContent = dark ? 'Light' : 'Dark';
}
function wireTheme() {
  $('btn-theme').onclick = () => { state.theme = $('btn-theme').textContent === 'Dark' ? 'dark' : 'light'; showTheme(); writeUrl(); };
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', showTheme);
}
