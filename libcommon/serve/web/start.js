// start.js - the script inside the page.  It applies the stored theme before the first frame, and
// starts the modules after that frame: to compile them first would delay it.
{
  let theme = 'dark';
  try { theme = JSON.parse(localStorage.getItem('zse.theme')) || theme; } catch { /* no storage */ }
  document.documentElement.dataset.theme = theme;
  const load = () => {
    const files = document.getElementById('modules').content, first = files.querySelector('link').getAttribute('href');
    document.head.append(files);
    import(first);
  };
  // a hidden tab draws no frame
  if (document.hidden) addEventListener('DOMContentLoaded', load);
  else requestAnimationFrame(() => setTimeout(load));
}
