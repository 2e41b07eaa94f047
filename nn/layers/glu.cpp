#include "tapestry/nn/internal/options_text.h"
#include "tapestry/nn/layers/activation.h"

namespace tapestry::nn {

std::string GLU::options_text() const { return detail::OptionsText().add("dim", options.dim).str(); }

}  // namespace tapestry::nn
