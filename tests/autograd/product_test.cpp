#include "tapestry/autograd/ops/product.h"

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("mm", "product", [](const OpCase& c) { return c[0].mm(c[1]); });
GOLDEN_OP("bmm", "product", [](const OpCase& c) { return c[0].bmm(c[1]); });
GOLDEN_OP("mv", "product", [](const OpCase& c) { return c[0].mv(c[1]); });
GOLDEN_OP("dot", "product", [](const OpCase& c) { return c[0].dot(c[1]); });
GOLDEN_OP("outer", "product", [](const OpCase& c) { return c[0].outer(c[1]); });
GOLDEN_OP("addmm", "product",
          [](const OpCase& c) { return c[0].addmm(c[1], c[2], c.scalar("beta"), c.scalar("alpha")); });
GOLDEN_OP("baddbmm", "product",
          [](const OpCase& c) { return c[0].baddbmm(c[1], c[2], c.scalar("beta"), c.scalar("alpha")); });
GOLDEN_OP("kron", "product", [](const OpCase& c) { return c[0].kron(c[1]); });
GOLDEN_OP("cross", "product", [](const OpCase& c) { return c[0].cross(c[1], c.integer("dim")); });
GOLDEN_OP("einsum", "product", [](const OpCase& c) { return einsum(c.text("equation"), c.inputs()); });
GOLDEN_OP("tensordot", "product",
          [](const OpCase& c) { return tensordot(c[0], c[1], c.dims("dims_a"), c.dims("dims_b")); });
GOLDEN_OP("tensordot/number", "product",
          [](const OpCase& c) { return tensordot(c[0], c[1], c.integer("dims")); });

BAD_INPUT("mm", "expected 2-d and 2-d tensors", [] { zeros({2, 3, 4}).mm(zeros({4, 2})); });
BAD_INPUT("mm", "do not fit", [] { zeros({2, 3}).mm(zeros({4, 2})); });
BAD_INPUT("bmm", "differ in size; matmul() broadcasts", [] { zeros({1, 2, 3}).bmm(zeros({2, 3, 2})); });
BAD_INPUT("bmm", "expected 3-d", [] { zeros({2, 3}).bmm(zeros({3, 2})); });
BAD_INPUT("mv", "expected 2-d and 1-d", [] { zeros({2, 3}).mv(zeros({3, 1})); });
BAD_INPUT("dot", "expected 1-d", [] { zeros({2, 3}).dot(zeros({3})); });
BAD_INPUT("dot", "do not fit", [] { zeros({2}).dot(zeros({3})); });
BAD_INPUT("outer", "expected two vectors", [] { zeros({2, 3}).outer(zeros({3})); });
BAD_INPUT("addmm", "do not broadcast", [] { zeros({3}).addmm(zeros({2, 3}), zeros({3, 2})); });
BAD_INPUT("addmm", "does not broadcast to", [] { zeros({1, 2, 2}).addmm(zeros({2, 3}), zeros({3, 2})); });
BAD_INPUT("addmm", "but the input has", [] { zeros({2}, kFloat64).addmm(zeros({2, 3}), zeros({3, 2})); });
BAD_INPUT("baddbmm", "differ in size", [] { zeros({2}).baddbmm(zeros({2, 2, 3}), zeros({1, 3, 2})); });
BAD_INPUT("kron", "more than 4 dimensions", [] { zeros({2, 2, 2, 2, 2}).kron(zeros({2, 2, 2, 2, 2})); });
BAD_INPUT("cross", "needs size 3", [] { zeros({2, 4}).cross(zeros({2, 4})); });
BAD_INPUT("cross", "as many dimensions", [] { zeros({2, 3}).cross(zeros({3})); });
BAD_INPUT("einsum", "has 2 terms", [] { einsum("ij,jk", {zeros({2, 3})}); });
BAD_INPUT("einsum", "has 1 terms", [] { einsum("", {}); });
BAD_INPUT("einsum", "'->' appears twice", [] { einsum("i->i->i", {zeros({2})}); });
BAD_INPUT("einsum", "an unexpected character", [] { einsum("i->i,i", {zeros({2})}); });
BAD_INPUT("einsum", "an unexpected character", [] { einsum("i.->i", {zeros({2})}); });
BAD_INPUT("einsum", "'...' twice", [] { einsum("...i...->i", {zeros({2})}); });
BAD_INPUT("einsum", "name every dimension", [] { einsum("ij->i", {zeros({2})}); });
BAD_INPUT("einsum", "name every dimension", [] { einsum("...ij->i", {zeros({2})}); });
BAD_INPUT("einsum", "is in no input", [] { einsum("i->ij", {zeros({2})}); });
BAD_INPUT("einsum", "index 'i' appears twice in the output", [] { einsum("i->ii", {zeros({2})}); });
BAD_INPUT("einsum", "the repeated index 'Z' has sizes 2 and 3", [] { einsum("ZZ->Z", {zeros({2, 3})}); });
BAD_INPUT("einsum", "index 'a' has size 2 in one", [] {
  einsum("ab,ac->bc", {zeros({2, 4}), zeros({3, 5})});
});
BAD_INPUT("einsum", "a dimension of '...' has size 2", [] {
  einsum("...i,...i->i", {zeros({2, 4}), zeros({3, 4})});
});
BAD_INPUT("einsum", "index 'k' of the output", [] { einsum("ij->k", {zeros({2, 3})}); });
BAD_INPUT("einsum", "must be equal", [] { einsum("ii->i", {zeros({2, 3})}); });
BAD_INPUT("einsum", "has size 3 in one tensor and 2 in another", [] {
  einsum("ij,jk->ik", {zeros({2, 3}), zeros({2, 4})});
});
BAD_INPUT("einsum", "differ; convert one", [] { einsum("i,i->", {zeros({2}), zeros({2}, kFloat64)}); });
BAD_INPUT("einsum", "is the limit", [] {
  einsum("abcde,fghij->abcdefghij", {zeros({1, 1, 1, 1, 1}), zeros({1, 1, 1, 1, 1})});
});
BAD_INPUT("tensordot", "give as many", [] { tensordot(zeros({2, 3}), zeros({3, 2}), {1}, {0, 1}); });
BAD_INPUT("tensordot", "appears twice", [] { tensordot(zeros({2, 2}), zeros({2, 2}), {0, 0}, {0, 1}); });
BAD_INPUT("tensordot", "differ in size", [] { tensordot(zeros({2, 3}), zeros({2, 2}), {1}, {0}); });
BAD_INPUT("tensordot", "use 0 to 1", [] { tensordot(zeros({2, 3}), zeros({3}), 2); });

TEST_CASE("einsum returns a view if no element is summed or multiplied") {
  const Tensor x = zeros({3, 3});
  CHECK(einsum("ij->ji", {x}).storage() == x.storage());
  einsum("ii->i", {x}).fill_(2);
  CHECK(equal(x, eye(3) * 2));
}

TEST_CASE("einsum adds in f32 for bf16, also in a batch of dot products") {
  // A sum in bf16 would stop at 256.
  const Tensor x = ones({2, 300}, DType::bf16);
  CHECK(einsum("bi,bi->b", {x, x})[1].item() == 300);
  CHECK(einsum("bi,bj->", {x, x.narrow(1, 0, 1)}).item() == 600);
}

TEST_CASE("cross uses the first dimension of size 3 by default") {
  const Tensor a = randn({2, 3, 3}), b = randn({2, 3, 3});
  CHECK(equal(cross(a, b), cross(a, b, 1)));
}
