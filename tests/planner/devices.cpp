// The tests measure on two logical devices, and train meshes on four.
#include <cstdlib>

static const int kFourDevices = setenv("TAPESTRY_LOGICAL_DEVICES", "4", 0);
