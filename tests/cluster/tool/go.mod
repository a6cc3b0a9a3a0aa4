module clustertool

go 1.24
