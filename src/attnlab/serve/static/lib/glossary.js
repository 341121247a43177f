// The terms of the field, explained where they first stand in a view: by hovering, by focus, or by a tap.
import { h } from "./dom.js";

/** What terms mean, by their names, with their plural if it has another stem. @type {[RegExp, string][]} */
export const TERMS = [
  [/keys?/, "The vector by which a token is found: the more it points along a query, the more weight it gets."],
  [/values?/, "The vector that a token contributes to the output, in proportion to its weight."],
  [/scores?/, "The dot product of a query and a key, before softmax."],
  [/quer(y|ies)/, "The vector of the token that looks: its dot product with every key decides what it looks at."],
  [/softmax/, "Turns scores into weights: each is e to the power of the score, divided by the sum over all keys."],
  [/weights?/, "The shares, which sum to one, in which the output of a head mixes the values."],
  [/embeddings?/, "The learned vector that stands for a token, a row of a table."],
  [/residual streams?/, "The vector that a token carries through the layers: attention and MLP read it and add to it."],
  [/MLPs?/, "Two linear maps with a nonlinear function in between, applied to each token by itself."],
  [/logit lens/, "The last norm and the head of the model, applied too early: what it would predict if it ended there."],
  [/logits?/, "The number that the model gives every token of its vocabulary, before softmax makes probabilities of them."],
  [/influences?/, "How strongly an output changes with an input, measured by gradients: shown where there are no weights over tokens."],
  [/margin/, "By how much the score of the first key exceeds that of the second."],
  [/hull/, "The smallest convex shape around points: all means of them lie in it, and nothing else does."],
  [/heads?/, "One of several attentions that a layer computes side by side, each with queries, keys and values of its own."],
  [/causal/, "A token sees itself and the tokens before it, never a later one."],
  [/tokens?/, "A piece of text that the model reads as one unit: a letter, a part of a word or a word."],
  [/cache/, "The keys and values of the tokens so far, kept so that the next token need not compute them again."],
  [/low rank/, "The matrix of weights is a product of two narrow ones, which is less work and less exact."],
  [/loss/, "The mean of −ln p, where p is the probability that the model gave to the right next token; less is better."],
  [/perplexity/, "e to the power of the loss: as unsure as if it chose among so many tokens at random."],
  [/validation/, "Measured on data that the model is not trained on."],
  [/nats?/, "The unit of the loss: one nat is a factor of e in probability."],
  [/epochs?/, "One pass over the training data."],
  [/seeds?/, "The number that fixes all random choices of a run; another seed gives another run of the same settings."],
  [/95[ \u00a0]%[ \u00a0]intervals?/, "A range made so that in 19 of 20 such exams it holds the true value."],
  [/pretrain(ing|ed)/, "Training on text, before any question is seen."],
  [/fine-tun(ing|ed)/, "Training a pretrained model further, on questions and answers."],
  [/ablations?/, "Switching a part off to see what changes."],
  [/calibrat(ion|ed)/, "Probabilities adjusted so that of answers said to be 80 % sure, 80 % are right."],
];
const ANY = new RegExp(`(?<![\\w-])(${TERMS.map(([name]) => name.source.replaceAll("(", "(?:")).join("|")})(?![\\w-])`, "i");
const READ = "p, dt, figcaption, caption, li, h2, h3, .facts th";
const APART = "a, button, label, code, pre, svg, script, style, dfn, details, [data-head], .tip, .help, .samples, .answer-card, .tokens, .text, .command, .notice, .kicker, [role=alert], [role=status]";

const ORDINARY = 3; // the first of these terms are also ordinary words: keys to press, values of a setting

/** The place of a word among the terms; -1 for others. @param {string} word */
export const termOf = (word) => TERMS.findIndex(([name]) => new RegExp(`^(${name.source})$`, "i").test(word));

/**
 * Marks each term once per view, where it first stands in a text.
 * @param {Element} root
 * @param {boolean} [technical]  whether keys, values and scores are those of attention here
 */
export const gloss = (root, technical = false) => {
  const view = root.closest(".view") ?? root;
  const known = new Set([...view.querySelectorAll("dfn")].map((term) => term.getAttribute("data-term")));
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  /** @type {Text[]} */
  const texts = [];
  while (walker.nextNode()) texts.push(/** @type {Text} */ (walker.currentNode));
  for (let text of texts) {
    if (!text.parentElement?.closest(READ) || text.parentElement.closest(APART)) continue;
    for (let found = ANY.exec(text.data); found; found = ANY.exec(text.data)) {
      const word = text.splitText(found.index), place = termOf(found[0]), term = String(place);
      text = word.splitText(found[0].length);
      if (known.has(term) || (place < ORDINARY && !technical)) continue;
      known.add(term);
      word.replaceWith(h("dfn", { "data-term": term, tabindex: 0 }, word.data));
    }
  }
};

/** @type {HTMLElement | null} */
let tip = null;

const hide = () => {
  tip?.parentElement?.removeAttribute("aria-describedby");
  tip?.remove();
  tip = null;
};

/** Puts the explanation beside its term, wherever there is room. */
const place = () => {
  const box = tip?.parentElement?.getBoundingClientRect();
  if (!tip || !box) return;
  const { offsetWidth: width, offsetHeight: height } = tip;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`;
  tip.style.top = `${box.bottom + height + 8 > innerHeight ? box.top - height : box.bottom}px`;
};

/** Shows what a term means. @param {Event} event */
const show = ({ target }) => {
  const term = target instanceof Element ? target.closest("dfn[data-term]") : null;
  if (!term || (tip && term.contains(tip))) return;
  hide();
  tip = h("span", { class: "meaning", id: "meaning", role: "tooltip" }, TERMS[Number(term.getAttribute("data-term"))][1]);
  term.append(tip);
  term.setAttribute("aria-describedby", "meaning");
  place();
};

/** Lets every term of a page show what it means. @param {Document} page */
export const explainTerms = (page) => {
  page.addEventListener("pointerover", show);
  page.addEventListener("focusin", show);
  page.addEventListener("pointerout", (event) => {
    const term = event.target instanceof Element ? event.target.closest("dfn") : null;
    if (term && !term.contains(/** @type {Node | null} */ (event.relatedTarget)) && term !== page.activeElement) hide();
  });
  page.addEventListener("focusout", hide);
  page.addEventListener("scroll", place, true);
  page.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
};
