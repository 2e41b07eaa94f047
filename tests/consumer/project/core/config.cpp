#include "core/config.h"

int batch_size() { return 8; }
