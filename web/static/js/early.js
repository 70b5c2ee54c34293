// Runs before the first paint, so that a chosen theme and language do not flash. Everything else is in main.js.
(function () {
  try {
    var theme = localStorage.getItem('butler.theme');
    if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
    var language = localStorage.getItem('butler.language') || navigator.language || 'en';
    document.documentElement.lang = language.slice(0, 2) === 'zh' ? 'zh-CN' : 'en';
  } catch (e) {
    document.documentElement.lang = 'en';
  }
})();
