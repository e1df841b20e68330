#pragma once

#include <nanobind/nanobind.h>

void bind_data(nanobind::module_& m);
