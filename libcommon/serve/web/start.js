// start.js - the script inside the page.  It applies what is stored before the first frame, which
// has an empty chat at its addresses, and starts the modules after that frame: to compile them
// first would delay it.
{
  let theme = 'dark', side = true;
  try {
    theme = JSON.parse(localStorage.getItem('zse.theme')) || theme;
    side = localStorage.getItem('zse.side') !== 'false';
  } catch { /* no storage */ }
  const root = document.documentElement;
  root.dataset.theme = theme;
  if (/^\/(chat)?$/.test(location.pathname) && !location.hash) root.dataset.first = side ? 'chat' : 'chat no-side';
  const load = () => {
    const files = document.getElementById('modules').content, first = files.querySelector('link').getAttribute('href');
    document.head.append(files);
    import(first);
  };
  // a hidden tab draws no frame
  if (document.hidden) addEventListener('DOMContentLoaded', load);
  else requestAnimationFrame(() => setTimeout(load));
}
