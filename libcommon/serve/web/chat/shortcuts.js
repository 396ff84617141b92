// shortcuts.js - the dialog that lists the keyboard shortcuts.

import { h, dialog } from '../core.js';

export function showShortcuts() {
  const mod = /Mac/.test(navigator.platform) ? '⌘' : 'Ctrl';
  const rows = [['Send', 'Enter'], ['New line', 'Shift Enter'], ['Stop the answer', 'Esc'],
    ['Edit the last message', '↑'], ['Search conversations', `${mod} K`], ['New chat', `${mod} Shift O`],
    ['Show or hide the conversations', `${mod} Shift S`], ['Settings of this chat', `${mod} ,`],
      ['Copy the last answer', `${mod} Shift C`], ['Write', '/']];
  dialog('Keyboard shortcuts',
    h('.keys-list', {}, rows.map(([what, keys]) =>
      [h('span', {}, what), h('span', {}, keys.split(' ').map(k => [h('kbd', {}, k), ' ']))])),
    [h('button.primary', { value: '' }, 'Close')]);
}
