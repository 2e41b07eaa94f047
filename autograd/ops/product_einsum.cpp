// einsum and tensordot. Each tensor is a factor, whose dimensions have labels. Two factors are multiplied by
// sorting the labels into four groups and calling matmul():
//   batch        in both factors, and needed later
//   left, right  in one factor only
//   summed       in both factors, and not needed later
// The factors become (batch, left, summed) and (batch, summed, right), the product (batch, left, right).
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/product.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry {
namespace {

using autograd::check_operands;
using autograd::Grad;
using autograd::Op;

const Op kEinsum("einsum", Grad::twice, kFloats);
const Op kTensordot("tensordot", Grad::twice, kFloats);

// Labels are small integers: capitals, then lower-case letters, then the dimensions of `...`, of which the
// last one has the last label.
constexpr int kLetters = 52, kNumLabels = kLetters + kMaxDims;
using Labels = std::vector<int>;
using LabelSet = std::array<bool, kNumLabels>;

bool has(const Labels& labels, int label) {
  return std::find(labels.begin(), labels.end(), label) != labels.end();
}

struct Factor {
  Tensor t;
  Labels labels;  // one per dimension of t, all different

  int dim_of(int label) const {
    return static_cast<int>(std::find(labels.begin(), labels.end(), label) - labels.begin());
  }
  std::int64_t size(int label) const { return t.sizes()[dim_of(label)]; }
  void remove(int label) { labels.erase(labels.begin() + dim_of(label)); }
};

// ---- the equation ----
struct Term {
  std::string letters;
  int dots = -1;  // the number of letters before `...`, or -1 without `...`
};
struct Equation {
  std::vector<Term> inputs;
  std::optional<Term> output;
};

int label_of(char letter) { return letter <= 'Z' ? letter - 'A' : letter - 'a' + 26; }

// The label for messages.
std::string label_text(int label) {
  if (label >= kLetters) return "a dimension of '...'";
  const auto letter = static_cast<char>(label < 26 ? 'A' + label : 'a' + label - 26);
  return concat({"index '", std::string(1, letter), "'"});
}

Equation parsed(std::string_view text) {
  const auto invalid = [&](const char* what) {
    fail("[einsum] ", what, " in the equation '", text, "'; write it like 'bij,bjk->bik'");
  };
  Equation e;
  e.inputs.emplace_back();
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    Term& term = e.output ? *e.output : e.inputs.back();
    if (c == ' ') continue;
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
      term.letters += c;
    } else if (text.substr(i, 3) == "...") {
      if (term.dots >= 0) invalid("a tensor has '...' twice");
      term.dots = static_cast<int>(term.letters.size());
      i += 2;
    } else if (text.substr(i, 2) == "->") {
      if (e.output) invalid("'->' appears twice");
      e.output.emplace();
      ++i;
    } else if (c == ',' && !e.output) {
      e.inputs.emplace_back();
    } else {
      invalid("an unexpected character");
    }
  }
  return e;
}

// The labels of a term for a tensor with `extra` dimensions in place of `...`.
Labels labels_of(const Term& term, int extra) {
  Labels labels;
  for (int i = 0; i <= static_cast<int>(term.letters.size()); ++i) {
    if (i == term.dots)
      for (int k = kNumLabels - extra; k < kNumLabels; ++k) labels.push_back(k);
    if (i < static_cast<int>(term.letters.size()))
      labels.push_back(label_of(term.letters[static_cast<std::size_t>(i)]));
  }
  return labels;
}

// The tensor with one dimension per label: an index that appears twice selects a diagonal.
Factor with_labels(Tensor t, Labels labels) {
  for (int d = 0; d < static_cast<int>(labels.size()); ++d) {
    const int label = labels[static_cast<std::size_t>(d)];
    int twin = d + 1;
    while (twin < static_cast<int>(labels.size())) {
      if (labels[static_cast<std::size_t>(twin)] != label) {
        ++twin;
        continue;
      }
      check(t.sizes()[d] == t.sizes()[twin], "[einsum] the repeated ", label_text(label), " has sizes ",
            t.sizes()[d], " and ", t.sizes()[twin], " in a tensor of shape ", t.sizes(),
            "; they must be equal");
      t = movedim(diagonal(t, 0, d, twin), -1, d);
      labels.erase(labels.begin() + twin);
    }
  }
  return {std::move(t), std::move(labels)};
}

// ---- products ----
// Sums over the dimensions whose labels are not in `needed`.
void sum_others(Factor& f, const LabelSet& needed) {
  Dims gone;
  Labels rest;
  for (std::size_t i = 0; i < f.labels.size(); ++i) {
    if (needed[static_cast<std::size_t>(f.labels[i])]) rest.push_back(f.labels[i]);
    else gone.push_back(static_cast<std::int64_t>(i));
  }
  if (gone.empty()) return;
  f.t = sum(f.t, gone);
  f.labels = rest;
}

// f as (product of the sizes of `a`, of `b`, of `c`), which are all its labels.
Tensor grouped(const Factor& f, const Labels& a, const Labels& b, const Labels& c) {
  Dims order;
  Shape sizes;
  for (const Labels* group : {&a, &b, &c}) {
    std::int64_t size = 1;
    for (const int label : *group) {
      order.push_back(f.dim_of(label));
      size *= f.size(label);
    }
    sizes.push_back(size);
  }
  return reshape(permute(f.t, order), sizes);
}

// The product of two factors, summed over the labels that are not in `needed`.
Factor multiplied(const Op& op, Factor x, Factor y, const LabelSet& needed) {
  // An index of size 1 in one factor broadcasts: the factor does without it, unless it is 1 in both.
  for (Factor* f : {&x, &y}) {
    const Factor& other = f == &x ? y : x;
    for (const int label : Labels(f->labels))
      if (has(other.labels, label) && f->size(label) == 1 && other.size(label) != 1) {
        f->t = squeeze(f->t, f->dim_of(label));
        f->remove(label);
      }
  }
  LabelSet of_x = needed, of_y = needed;  // indices that only one of the factors has are summed first
  for (const int label : y.labels) of_x[static_cast<std::size_t>(label)] = true;
  for (const int label : x.labels) of_y[static_cast<std::size_t>(label)] = true;
  sum_others(x, of_x);
  sum_others(y, of_y);

  Labels batch, left, summed, right;
  for (const int label : x.labels) {
    if (!has(y.labels, label)) left.push_back(label);
    else (needed[static_cast<std::size_t>(label)] ? batch : summed).push_back(label);
  }
  for (const int label : y.labels)
    if (!has(x.labels, label)) right.push_back(label);
  Shape sizes;
  Labels labels;
  for (const Labels* group : {&batch, &left, &right})
    for (const int label : *group) {
      check(labels.size() < kMaxDims, "[", op.name, "] an intermediate result has more than ", kMaxDims,
            " dimensions, which is the limit; multiply the tensors in another order");
      sizes.push_back(has(x.labels, label) ? x.size(label) : y.size(label));
      labels.push_back(label);
    }
  for (const Labels* group : {&batch, &summed})
    for (const int label : *group)
      check(x.size(label) == y.size(label), "[", op.name, "] ", label_text(label), " has size ",
            x.size(label), " in one tensor and ", y.size(label), " in another; they must be equal, or 1");
  const Tensor a = grouped(x, batch, left, summed);
  Tensor product;
  if (summed.empty()) {
    product = mul(a, grouped(y, batch, summed, right));
  } else if (left.empty() && right.empty() && !batch.empty() && contains(kFullFloats, a.dtype())) {
    // A batch of dot products. f16 and bf16 use matmul(), which adds in f32.
    product = sum(mul(a, grouped(y, batch, right, summed)), 2);
  } else {
    product = matmul(a, grouped(y, batch, summed, right));
  }
  return {reshape(product, sizes), labels};
}

// f with the dimensions in the order of `labels`.
Tensor arranged(const Factor& f, const Labels& labels) {
  Dims order;
  for (const int label : labels) order.push_back(f.dim_of(label));
  return permute(f.t, order);
}

}  // namespace

Tensor einsum(std::string_view equation, const std::vector<Tensor>& tensors) {
  if (const autograd::Autocast cast(kEinsum, tensors); cast) return einsum(equation, cast(tensors));
  const Equation e = parsed(equation);
  check(e.inputs.size() == tensors.size(), "[einsum] ", tensors.size(), " tensors for the equation '",
        equation, "', which has ", e.inputs.size(), " terms");
  std::vector<Factor> factors;
  int dots = 0;  // the largest number of dimensions in place of `...`
  std::array<int, kNumLabels> count{};
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& t = tensors[i];
    check_operands(kEinsum, tensors[0], t);
    kEinsum.check_dtype(t.dtype());
    check<TypeError>(t.dtype() == tensors[0].dtype(), "[einsum] dtypes ", tensors[0].dtype(), " and ",
                     t.dtype(), " differ; convert one with to(dtype)");
    const Term& term = e.inputs[i];
    const int extra = t.dim() - static_cast<int>(term.letters.size());
    check(term.dots >= 0 ? extra >= 0 : extra == 0, "[einsum] term ", i, " of '", equation, "' has ",
          term.letters.size(), " indices, but its tensor has shape ", t.sizes(), "; name every dimension");
    if (term.dots >= 0) dots = std::max(dots, extra);
    const Labels labels = labels_of(term, extra);
    for (const int label : labels) ++count[static_cast<std::size_t>(label)];
    factors.push_back(with_labels(t, labels));
  }

  Labels output;
  if (e.output) {
    output = labels_of(*e.output, e.output->dots >= 0 ? dots : 0);
    for (std::size_t i = 0; i < output.size(); ++i) {
      const int label = output[i];
      check(label >= kLetters || count[static_cast<std::size_t>(label)] > 0, "[einsum] ", label_text(label),
            " of the output of '", equation, "' is in no input");
      check(std::find(output.begin(), output.begin() + static_cast<std::ptrdiff_t>(i), label) ==
                output.begin() + static_cast<std::ptrdiff_t>(i),
            "[einsum] ", label_text(label), " appears twice in the output of '", equation, "'");
    }
  } else {
    for (int k = kNumLabels - dots; k < kNumLabels; ++k) output.push_back(k);
    for (int label = 0; label < kLetters; ++label)
      if (count[static_cast<std::size_t>(label)] == 1) output.push_back(label);
  }

  Factor result = factors[0];
  for (std::size_t i = 0; i < factors.size(); ++i) {
    LabelSet needed{};  // by the output and by the tensors that follow
    for (const int label : output) needed[static_cast<std::size_t>(label)] = true;
    for (std::size_t k = i + 1; k < factors.size(); ++k)
      for (const int label : factors[k].labels) needed[static_cast<std::size_t>(label)] = true;
    if (i > 0) result = multiplied(kEinsum, result, factors[i], needed);
    else if (factors.size() == 1) sum_others(result, needed);
  }
  return arranged(result, output);
}

Tensor tensordot(const Tensor& a, const Tensor& b, const Dims& dims_a, const Dims& dims_b) {
  if (const autograd::Autocast cast(kTensordot, a, b); cast)
    return tensordot(cast(a), cast(b), dims_a, dims_b);
  check_operands(kTensordot, a, b);
  kTensordot.check_dtype(a.dtype());
  check<TypeError>(a.dtype() == b.dtype(), "[tensordot] dtypes ", a.dtype(), " and ", b.dtype(),
                   " differ; convert one with to(dtype)");
  check(dims_a.size() == dims_b.size(), "[tensordot] ", dims_a.size(), " dimensions ", dims_a, " of a and ",
        dims_b.size(), " of b ", dims_b, "; give as many");
  // a gets the labels 0, 1, ..., and b the labels after them, except that a summed dimension of b has the
  // label of its partner.
  Factor x{a, {}}, y{b, {}};
  for (int d = 0; d < a.dim(); ++d) x.labels.push_back(d);
  for (int d = 0; d < b.dim(); ++d) y.labels.push_back(kMaxDims + d);
  LabelSet needed{};
  for (const Labels* labels : {&x.labels, &y.labels})
    for (const int label : *labels) needed[static_cast<std::size_t>(label)] = true;
  for (int i = 0; i < dims_a.size(); ++i) {
    const int da = wrap_dim("tensordot", dims_a[i], a.dim()), db = wrap_dim("tensordot", dims_b[i], b.dim());
    check<IndexError>(a.dim() > 0 && b.dim() > 0, "[tensordot] a 0-d tensor has no dimension to sum over");
    const bool first =
        needed[static_cast<std::size_t>(da)] && needed[static_cast<std::size_t>(kMaxDims + db)];
    check(first, "[tensordot] a dimension appears twice in ", dims_a, " or in ", dims_b,
          "; name each dimension once");
    const std::int64_t p = a.sizes()[da], q = b.sizes()[db];
    check(p == q || p == 1 || q == 1, "[tensordot] dimension ", da, " of shape ", a.sizes(),
          " and dimension ", db, " of shape ", b.sizes(), " differ in size; they must be equal, or 1");
    needed[static_cast<std::size_t>(da)] = needed[static_cast<std::size_t>(kMaxDims + db)] = false;
    y.labels[static_cast<std::size_t>(db)] = da;
  }
  return multiplied(kTensordot, std::move(x), std::move(y), needed).t;
}

Tensor tensordot(const Tensor& a, const Tensor& b, std::int64_t dims) {
  check_operands(kTensordot, a, b);
  check(dims >= 0 && dims <= std::min(a.dim(), b.dim()), "[tensordot] ", dims, " dimensions of shapes ",
        a.sizes(), " and ", b.sizes(), "; use 0 to ", std::min(a.dim(), b.dim()));
  Dims of_a, of_b;
  for (int i = 0; i < dims; ++i) {
    of_a.push_back(a.dim() - dims + i);
    of_b.push_back(i);
  }
  return tensordot(a, b, of_a, of_b);
}

}  // namespace tapestry
