#pragma once
namespace planted {
/// An address in the file that planted.cu is a part of.
const void* anchor();
}  // namespace planted
