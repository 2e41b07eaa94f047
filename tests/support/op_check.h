#pragma once
// The checks behind GOLDEN_OP. They return what failed instead of reporting it, so that the harness can be
// tested with operations that are wrong (tests/harness).
#include <map>
#include <set>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tapestry::test {

/// What the checks need to know of an operation.
struct OpInfo {
  std::string name;
  bool differentiable = true;
  DTypeSet dtypes = kFloats;
};
/// All operations of the registry, by name.
std::vector<OpInfo> registered_ops();
/// "add/in_place" -> "add"
std::string base_name(const std::string& op);

/// Holds one case against PyTorch's answers, kinds in `skip` excepted:
/// golden, gradcheck, strided as tests/README.md describes them.
Failures run_case(const std::shared_ptr<const Golden>& golden, const OpInfo& info, const OpFunction& fn,
                  const std::set<Kind>& skip = {});
/// How often the host has waited for devices so far; null where nobody counts.
inline std::int64_t (*host_waits)() = nullptr;
/// How many runs ended at which missing kernel ("conv2d f64").
using MissingRuns = std::map<std::string, int>;
/// The same case with everything on another device: values in each dtype that the operation takes; with
/// gradients, in all layouts, in f32 and bf16; the host waits for nothing, but for results that lie on it. A
/// run that needs a kernel which does not exist there is counted in `missing`, if the error names the kernel,
/// device type and dtype.
Failures run_case_on(Device device, const std::shared_ptr<const Golden>& golden, const OpInfo& info,
                     const OpFunction& fn, const std::set<Kind>& skip, MissingRuns& missing);
/// Whether the operation refuses, by a TypeError, the dtypes that it says it does not take.
Failures run_refusals(const GoldenCases& cases, const OpInfo& info, const OpFunction& fn);

/// Where a difference is within rounding: `units` * eps(dtype) * scale, plus as many of the dtype's smallest
/// numbers. Values beyond the dtype's range must be infinities, NaN must be NaN.
void compare(const std::string& what, const Tensor& got, const Values& expected, DType dtype, double units,
             Failures& failures);

/// One GOLDEN_OP, as far as the matrix is concerned.
struct GoldenRow {
  std::string op, family;
};
/// One OP_TEST or BAD_INPUT, or with a reason one NOT_APPLICABLE.
struct KindRow {
  std::string op;
  Kind kind;
  std::string reason;
};
const std::vector<GoldenRow>& golden_rows();
const std::vector<KindRow>& kind_rows();

struct Matrix {
  std::string markdown;
  Failures failures;
};
/// Operation x kind. Fails for each blank cell, each row of an operation that does not exist, each recorded
/// case that nothing runs, each reason for the absence of what is there.
/// `cases` gives the recorded cases of a family.
Matrix build_matrix(const std::vector<OpInfo>& ops, const std::vector<GoldenRow>& golden,
                    const std::vector<KindRow>& rows, const std::vector<std::string>& families,
                    const std::function<const GoldenCases&(const std::string&)>& cases);

}  // namespace tapestry::test
