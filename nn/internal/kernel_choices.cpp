#include "tapestry/nn/internal/kernel_choices.h"

#include "tapestry/core/error.h"
#include "tapestry/core/kernel_policy.h"
#include "tapestry/kernels/choice_table.h"

namespace tapestry::nn {
namespace {

const std::string kKey = "tapestry.kernel_choices";

}  // namespace

void put_kernel_choices(StringMap& extra) {
  const std::string choices = kernel_choices();
  if (!kernels::parse_choices(choices).empty()) extra[kKey] = choices;
}

std::string take_kernel_choices(const char* op, const std::string& path, StringMap& extra) {
  const auto found = extra.find(kKey);
  if (found == extra.end()) return {};
  const std::string choices = found->second;
  extra.erase(found);
  try {
    kernels::parse_choices(choices);
  } catch (const ValueError& e) {
    fail<IoError>("[", op, "] ", path, ": its kernel choices are broken: ", e.what());
  }
  return choices;
}

}  // namespace tapestry::nn
