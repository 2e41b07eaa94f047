#include "tapestry/kernels/cuda/vendor/cudnn_descriptor.h"

#include "tapestry/core/error.h"

namespace tapestry::kernels::cuda::cudnn {

Descriptor::Descriptor(Kind kind) : functions_(&functions()), kind_(kind) {
  check_status(*functions_, functions_->cudnnBackendCreateDescriptor(static_cast<int>(kind), &raw_),
               "cudnnBackendCreateDescriptor", name_of(kind));
}

Descriptor::~Descriptor() {
  if (raw_) static_cast<void>(functions_->cudnnBackendDestroyDescriptor(raw_));
}

Descriptor& Descriptor::finalize() {
  check_status(*functions_, functions_->cudnnBackendFinalize(raw_), "cudnnBackendFinalize", name_of(kind_));
  return *this;
}

void Descriptor::set_raw(Attribute attribute, Type type, std::int64_t count, const void* values) {
  check_status(*functions_,
               functions_->cudnnBackendSetAttribute(raw_, static_cast<int>(attribute), static_cast<int>(type),
                                                    count, values),
               "cudnnBackendSetAttribute", name_of(attribute));
}

std::int64_t Descriptor::get_raw(Attribute attribute, Type type, std::int64_t most, void* values) const {
  std::int64_t count = 0;
  check_status(*functions_,
               functions_->cudnnBackendGetAttribute(raw_, static_cast<int>(attribute), static_cast<int>(type),
                                                    most, &count, most > 0 ? values : nullptr),
               "cudnnBackendGetAttribute", name_of(attribute));
  return most > 0 && count > most ? most : count;
}

}  // namespace tapestry::kernels::cuda::cudnn
