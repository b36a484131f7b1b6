// Blocks and tables that scroll sideways can be reached by keyboard.
document$.subscribe(() => {
  for (const box of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
})
