#pragma once
// The checks behind GOLDEN_OP. They return failures instead of reporting them, so that tests/harness can test
// the harness with deliberately wrong operations.
#include <map>
#include <set>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tapestry::test {

/// Properties of an operation that the checks need.
struct OpInfo {
  std::string name;
  bool differentiable = true;
  DTypeSet dtypes = kFloats;
  bool twice = false;  ///< it has gradients of gradients
};
/// All registered operations, sorted by name.
std::vector<OpInfo> registered_ops();
/// The name before the slash: "add/in_place" -> "add".
std::string base_name(const std::string& op);

/// The gradient of output k: multiples of 1/4 in [-1.5, 1.5]. tests/golden/cases.py uses the same formula.
Values grad_output(std::int64_t k, const Shape& sizes, DType dtype);

/// Runs the checks of one recorded case: golden (against PyTorch's results), gradcheck and gradgradcheck
/// (against central differences) and strided, except for the kinds in `skip`. An operation without gradients
/// of gradients must refuse a pass with create_graph by name.
Failures run_case(const std::shared_ptr<const Golden>& golden, const OpInfo& info, const OpFunction& fn,
                  const std::set<Kind>& skip = {});
/// A function that returns how often the host has waited for a device so far. The pointer is null in programs
/// that do not count waits.
inline std::int64_t (*host_waits)() = nullptr;
/// Counts the runs that failed because a kernel is missing. The key names the kernel ("conv2d f64").
using MissingRuns = std::map<std::string, int>;
/// Runs the case on another device: values in every dtype of the operation; gradients in all layouts in f32
/// and bf16. The host must not wait, except for results that are on the host. If a run fails because a kernel
/// is missing, it is counted in `missing`, provided that the error names the kernel, device type and dtype.
Failures run_case_on(Device device, const std::shared_ptr<const Golden>& golden, const OpInfo& info,
                     const OpFunction& fn, const std::set<Kind>& skip, MissingRuns& missing);
/// Checks that the operation throws a TypeError for every dtype that it does not claim to take.
Failures run_refusals(const GoldenCases& cases, const OpInfo& info, const OpFunction& fn);

/// Adds a failure unless `got` equals `expected` within `units` * (eps(dtype) * scale + smallest(dtype)).
/// A value out of the dtype's range may be infinite. NaN must be NaN.
void compare(const std::string& what, const Tensor& got, const Values& expected, DType dtype, double units,
             Failures& failures);

/// A row of the test matrix: one GOLDEN_OP.
struct GoldenRow {
  std::string op, family;
};
/// A row of the test matrix: an OP_TEST, a BAD_INPUT, or a NOT_APPLICABLE with its reason.
struct KindRow {
  std::string op;
  Kind kind;
  std::string reason;
};
const std::vector<GoldenRow>& golden_rows();
/// All operations under test of this program.
const std::vector<const GoldenOp*>& golden_ops();
const std::vector<KindRow>& kind_rows();

struct Matrix {
  std::string markdown;
  Failures failures;
};
/// What the table says of an operation on GPUs: the cell, and a reason, which becomes a note.
struct DeviceCell {
  std::string text, reason;
};
struct DeviceColumn {
  std::string title;
  std::function<DeviceCell(const std::string& op)> cell;
};
/// Builds the table of operations and kinds of test. It is a failure if a cell is blank, if a row names an
/// unknown operation, if no GOLDEN_OP runs a recorded case, or if a reason is given although there is a test.
/// `cases` returns the recorded cases of a family. Cells of `columns` may not be blank either.
Matrix build_matrix(const std::vector<OpInfo>& ops, const std::vector<GoldenRow>& golden,
                    const std::vector<KindRow>& rows, const std::vector<std::string>& families,
                    const std::function<const GoldenCases&(const std::string&)>& cases,
                    const std::vector<DeviceColumn>& columns = {});

}  // namespace tapestry::test
