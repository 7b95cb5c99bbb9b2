(function () {
  "use strict";
  var boxes = Array.from(document.querySelectorAll(".filter input[type=checkbox]"));
  var search = document.querySelector(".filter input[type=search]");
  var shown = document.getElementById("shown");
  var items = Array.from(document.querySelectorAll("details.q"), function (node) {
    return { node: node, outcome: node.dataset.outcome, text: node.firstElementChild.textContent.toLowerCase() + " " + node.dataset.id.toLowerCase() };
  });
  function apply() {
    var wanted = boxes.filter(function (box) { return box.checked; }).map(function (box) { return box.value; });
    var words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    var count = 0;
    items.forEach(function (item) {
      var visible = (!wanted.length || wanted.includes(item.outcome)) && words.every(function (word) { return item.text.includes(word); });
      item.node.hidden = !visible;
      count += visible;
    });
    shown.textContent = count === items.length ? "" : count + " shown";
  }
  function reveal() {
    var target = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
    var question = target && target.closest("details.q");
    if (question) {
      question.hidden = false;
      question.open = true;
      target.scrollIntoView();
    }
  }
  boxes.forEach(function (box) { box.addEventListener("change", apply); });
  search.addEventListener("input", apply);
  window.addEventListener("hashchange", reveal);
  document.querySelector(".filter").hidden = false;
  reveal();
})();
