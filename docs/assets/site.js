// For keyboards and screen readers: what scrolls sideways can be reached, and the search has a name.
document$.subscribe(() => {
  for (const box of document.querySelectorAll(".md-typeset pre > code, .md-typeset__scrollwrap"))
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0
  document.querySelector(".md-search[role=dialog]")?.setAttribute("aria-label", "Search")
})
