#include <cstdlib>

// Before anything asks for a device: cpu:0 to cpu:3.
static const int kFourDevices = setenv("TAPESTRY_LOGICAL_DEVICES", "4", 0);
