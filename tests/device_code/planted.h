#pragma once
namespace planted {
/// An address in the file that contains planted.cu.
const void* anchor();
}  // namespace planted
