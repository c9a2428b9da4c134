// A box above a long table that hides the rows without the typed words.
document.addEventListener("DOMContentLoaded", () => {
  for (const around of document.querySelectorAll(".filtered")) {
    const box = document.createElement("input");
    box.type = "search";
    box.placeholder = "filter";
    box.setAttribute("aria-label", "filter the table");
    box.className = "md-input";
    box.addEventListener("input", () => {
      const words = box.value.toLowerCase().split(/\s+/);
      for (const row of around.querySelectorAll("tbody tr"))
        row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
    });
    around.prepend(box);
  }
});
