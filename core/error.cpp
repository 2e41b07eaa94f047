#include "tapestry/core/error.h"

#include <charconv>

namespace tapestry {

void Piece::append_to(std::string& out) const {
  char buffer[32];
  switch (kind_) {
    case Kind::integer:
      out += std::to_string(integer_);
      break;
    case Kind::natural:
      out += std::to_string(static_cast<std::uint64_t>(integer_));
      break;
    case Kind::real:
      out.append(buffer, std::to_chars(buffer, buffer + sizeof buffer, real_).ptr);
      break;
    case Kind::text:
      out += text_;
      break;
    case Kind::shape:
      out += shape_->str();
      break;
    case Kind::device:
      out += device_.str();
      break;
  }
}

std::string concat(std::initializer_list<Piece> pieces) {
  std::string out;
  for (const Piece& piece : pieces) piece.append_to(out);
  return out;
}

}  // namespace tapestry
