/* Includes contract.h for C sources. What only C sources share is in the header of the part that offers it. */
#ifndef FFFS_H
#define FFFS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "contract.h"

#endif
