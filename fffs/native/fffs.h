/* The C side's view of contract.h, with what the C sources share beside it. */
#ifndef FFFS_H
#define FFFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "contract.h"

#endif
