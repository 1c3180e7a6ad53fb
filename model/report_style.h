/* Style sheet and script of the report. Private to model/report*.c. */
#pragma once

extern const char report_css[];
extern const char report_js[];      /* shows the values under the pointer */
