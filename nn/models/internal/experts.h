#pragma once
// Hugging Face's files have the weights of a layer's experts one by one; GroupedExperts has them in two
// parameters, (experts, rows, columns).
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/core/shape.h"

namespace tapestry::nn::detail {

/// A matrix of an expert in a file: the rows from `first` on of matrix `expert` of the parameter.
struct ExpertMatrix {
  std::string name;
  std::int64_t expert = 0, first = 0;
  Shape sizes;
};
/// The matrices of a parameter of GroupedExperts, (experts, rows, columns), in the order of its elements.
/// Empty for a parameter with another name.
inline std::vector<ExpertMatrix> expert_matrices(const std::string& name, const Shape& sizes) {
  const std::size_t at = name.rfind(".experts.");
  const std::string last = at == name.npos ? "" : name.substr(at + 9);
  if (sizes.size() != 3 || (last != "gate_up_proj" && last != "down_proj")) return {};
  std::vector<std::string> parts = {"down_proj"};
  if (last == "gate_up_proj") parts = {"gate_proj", "up_proj"};
  const std::int64_t rows = sizes[1] / static_cast<std::int64_t>(parts.size());
  std::vector<ExpertMatrix> all;
  for (std::int64_t e = 0; e < sizes[0]; ++e)
    for (std::size_t p = 0; p < parts.size(); ++p)
      all.push_back({name.substr(0, at + 9) + std::to_string(e) + "." + parts[p] + ".weight",
                     e,
                     rows * static_cast<std::int64_t>(p),
                     {rows, sizes[2]}});
  return all;
}

}  // namespace tapestry::nn::detail
