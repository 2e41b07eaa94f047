// The tests measure on two logical devices.
#include <cstdlib>

static const int kTwoDevices = setenv("TAPESTRY_LOGICAL_DEVICES", "2", 0);
