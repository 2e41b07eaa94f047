#include "tapestry/autograd/ops.h"
#include "tests/support/op_case.h"

using namespace tapestry;
using tapestry::test::OpCase;

GOLDEN_OP("atleast_1d", "view_split", [](const OpCase& c) { return atleast_1d(c[0]); });
GOLDEN_OP("atleast_2d", "view_split", [](const OpCase& c) { return atleast_2d(c[0]); });
GOLDEN_OP("atleast_3d", "view_split", [](const OpCase& c) { return atleast_3d(c[0]); });
GOLDEN_OP("hsplit", "view_split", [](const OpCase& c) { return hsplit(c[0], c.integer("sections")); });
GOLDEN_OP("vsplit", "view_split", [](const OpCase& c) { return vsplit(c[0], c.integer("sections")); });
GOLDEN_OP("dsplit", "view_split", [](const OpCase& c) { return dsplit(c[0], c.integer("sections")); });
GOLDEN_OP("hsplit/indices", "view_split",
          [](const OpCase& c) { return hsplit(c[0], c.integers("indices")); });
GOLDEN_OP("vsplit/indices", "view_split",
          [](const OpCase& c) { return vsplit(c[0], c.integers("indices")); });
GOLDEN_OP("dsplit/indices", "view_split",
          [](const OpCase& c) { return dsplit(c[0], c.integers("indices")); });

BAD_INPUT("atleast_1d", "undefined", [] { atleast_1d(Tensor()); });
BAD_INPUT("atleast_2d", "undefined", [] { atleast_2d(Tensor()); });
BAD_INPUT("atleast_3d", "undefined", [] { atleast_3d(Tensor()); });
BAD_INPUT("hsplit", "at least 1 dimension", [] { hsplit(zeros({}), 1); });
BAD_INPUT("hsplit", "4 sections of dimension 1, which has 6", [] { hsplit(zeros({2, 6}), 4); });
BAD_INPUT("hsplit", "0 sections", [] { hsplit(zeros({6}), 0); });
BAD_INPUT("vsplit", "at least 2 dimensions", [] { vsplit(zeros({6}), 2); });
BAD_INPUT("dsplit", "at least 3 dimensions", [] { dsplit(zeros({2, 6}), std::vector<std::int64_t>{1}); });

TEST_CASE("atleast and the splits give views") {
  const Tensor x = zeros({6});
  CHECK(atleast_3d(x).storage() == x.storage());
  for (const Tensor& part : hsplit(x, 2)) CHECK(part.storage() == x.storage());
}
